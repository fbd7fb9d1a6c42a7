"""Neighbours on a grid of ranks: the arithmetic that Ring and Mesh share.

Ranks are numbered in row-major order: the last axis is the fastest. On one axis, ranks that follow
each other are ``stride`` apart, where the stride is the product of the extents behind that axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex

from ..errors import TopologyError
from .arguments import below, integer, ordered, plain, position
from .base import Shift, Topology
from .graph import Graph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Cartesian"]


@dataclass(frozen=True, slots=True, repr=False)
class Cartesian(Topology):
    """A grid of ranks; make a :class:`Ring` or a :class:`Mesh`.

    Args:
        size: Number of ranks, the product of ``shape``.
        shape: Extent of each axis, in ranks.
        axes: Name of each axis.
        periodic_axes: Whether each axis closes on itself.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    periodic_axes: tuple[bool, ...]

    def axis_index(self, axis: str | int | None, operation: str = "axis_index") -> int:
        """Return the position of ``axis`` in ``axes`` and ``shape``.

        Args:
            axis: Name or index (from 0; negative ones do not count back). ``None`` means the only
                axis and is an error where there are several.
            operation: What the error text starts with.

        Raises:
            TopologyError: There is no such axis; the text lists the names.

        Source: the names are those of torch's DeviceMesh; MPI has indices only.
        """
        index: int | None
        if axis is None:
            index = 0 if len(self.axes) == 1 else None
        elif isinstance(axis, str):
            index = self.axes.index(axis) if axis in self.axes else None
        else:
            index = plain(axis)
        if index is None or not 0 <= index < len(self.axes):
            names = ", ".join(map(repr, self.axes))
            remedy = "; there are several, so name one" if axis is None else ""
            raise TopologyError(
                f"{operation}: axis must be {names} or in 0..{len(self.axes) - 1}, "
                f"got {axis!r}{remedy}"
            )
        return index

    def neighbours(self, rank: SupportsIndex, axis_index: int, offset: SupportsIndex) -> Shift:
        """Return from whom and to whom a shift by ``offset`` along one axis goes.

        Args:
            rank: Whose neighbours.
            axis_index: Which axis, as :meth:`axis_index` returns it.
            offset: Signed, in ranks along the axis; 0 and beyond the extent are fine.

        Returns:
            ``source`` = the rank at ``-offset``, ``destination`` = the one at ``+offset``, wrapped
            on a periodic axis and ``None`` beyond an open end.

        Raises:
            TopologyError: No such rank or axis, or an offset that is not an int.

        Source: MPI_Cart_shift.
        """
        return self._shift("neighbours", rank, axis_index, offset)

    def coords(self, rank: SupportsIndex) -> tuple[int, ...]:
        """Return the coordinate of ``rank`` on each axis.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.

        Source: MPI_Cart_coords.
        """
        here = position(f"{self!r}.coords", rank, self.size)
        return tuple(here // self._stride(axis) % extent for axis, extent in enumerate(self.shape))

    def rank_of(self, coords: Sequence[SupportsIndex]) -> int:
        """Return the rank at ``coords``, one per axis.

        Coordinates do not wrap, periodic or not: ask :meth:`neighbours` for that.

        Raises:
            TopologyError: Not one coordinate per axis, or one outside of its axis.

        Source: MPI_Cart_rank, which wraps on periodic axes.
        """
        operation = f"{self!r}.rank_of"
        given = ordered(operation, "coords", coords)
        if len(given) != len(self.shape):
            raise TopologyError(
                f"{operation}: coords must be {len(self.shape)} ints, one per axis, got {given!r}"
            )
        return sum(
            below(operation, f"coordinate on axis {name!r}", at, extent) * self._stride(axis)
            for axis, (name, at, extent) in enumerate(
                zip(self.axes, given, self.shape, strict=True)
            )
        )

    def along(self, axis: str | int | None, rank: SupportsIndex) -> tuple[int, ...]:
        """Return the ranks of the line through ``rank`` along ``axis``, by their coordinate on it.

        Raises:
            TopologyError: No such axis or rank.

        Source: the ranks of one communicator of MPI_Cart_sub that keeps only ``axis``.
        """
        operation = f"{self!r}.along"
        index = self.axis_index(axis, operation)
        here = position(operation, rank, self.size)
        extent, stride = self.shape[index], self._stride(index)
        first = here - here // stride % extent * stride
        return tuple(range(first, first + extent * stride, stride))

    def edge_weight(self, axis: str | int | None = None) -> float:
        """Return the weight of an edge along ``axis`` in the mixing matrix.

        It is the same on all axes of more than one rank: what a rank takes from each neighbour, if
        it has them all, and keeps of its own. What would come from beyond an open end it keeps too.
        """
        if self.shape[self.axis_index(axis, f"{self!r}.edge_weight")] == 1:
            return 0.0
        return 1 / (2 * sum(extent > 1 for extent in self.shape) + 1)

    def to_graph(self) -> Graph:
        """Return the edges between neighbours, axis by axis, those to the left first, with weights.

        A rank that is its own neighbour, on a periodic axis of one, has edges of weight 0.
        """
        edges: list[tuple[int, int]] = []
        weights: list[float] = []
        for axis in range(len(self.shape)):
            for way in (-1, 1):
                ends = ((rank, self._moved(rank, axis, way)) for rank in range(self.size))
                found = [(rank, there) for rank, there in ends if there is not None]
                edges += found
                weights += [self.edge_weight(axis)] * len(found)
        return Graph(self.size, edges, weights)

    def mixing_matrix(self) -> NDArray[np.float64]:
        """Return W, size x size: x_i <- sum_j W[i, j] x_j, so row i says what rank i takes.

        Equal weights, by which every rank keeps what would come from beyond an open end: symmetric
        and doubly stochastic.
        """
        return self.to_graph().mixing_matrix()

    def _shift(
        self, method: str, rank: SupportsIndex, axis: str | int | None, offset: SupportsIndex
    ) -> Shift:
        operation = f"{self!r}.{method}"
        index = self.axis_index(axis, operation)
        here = position(operation, rank, self.size)
        distance = integer(operation, "offset", offset)
        return Shift(
            source=self._moved(here, index, -distance),
            destination=self._moved(here, index, distance),
        )

    def _moved(self, rank: int, axis: int, distance: int) -> int | None:
        """Return the rank ``distance`` further along ``axis``, ``None`` beyond an open end."""
        extent, stride = self.shape[axis], self._stride(axis)
        here = rank // stride % extent
        there = here + distance
        if self.periodic_axes[axis]:
            there %= extent
        if not 0 <= there < extent:
            return None
        return rank + (there - here) * stride

    def _stride(self, axis: int) -> int:
        return math.prod(self.shape[axis + 1 :])
