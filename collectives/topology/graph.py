"""Graph: ranks joined by any directed edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

from ..errors import TopologyError
from .arguments import below, ordered, position, positive
from .base import Topology

__all__ = ["Graph"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Graph(Topology):
    """Ranks joined by directed edges, numbered in the order in which they are given.

    The order is part of the graph: the k-th edge from one rank to another meets the k-th edge
    that the other one has from it. So all ranks must give the edges in the same order.

    Args:
        size: Number of ranks.
        edges: Pairs ``(source, destination)``. An edge may occur twice, and a rank may have an
            edge to itself.

    Raises:
        TopologyError: ``size`` is not a positive int, ``edges`` has no order, or an edge is not
            a pair of ranks in ``0..size - 1``.

    Example:
        >>> star = Graph(3, [(0, 1), (0, 2)])
        >>> star.destinations(0), star.sources(2)
        ((1, 2), (0,))
        >>> star.reverse()
        Graph(3, ((1, 0), (2, 0)))

    Source: MPI_Dist_graph_create_adjacent, which gives each rank only its own edges.
    """

    edges: tuple[tuple[int, int], ...]

    def __init__(
        self, size: SupportsIndex, edges: Sequence[tuple[SupportsIndex, SupportsIndex]]
    ) -> None:
        ranks = positive("Graph", "size", size)
        object.__setattr__(self, "size", ranks)
        object.__setattr__(
            self,
            "edges",
            tuple(
                _edge(number, edge, ranks)
                for number, edge in enumerate(ordered("Graph", "edges", edges))
            ),
        )

    def sources(self, rank: SupportsIndex) -> tuple[int, ...]:
        """Return from whom edges arrive at ``rank``, in the order of the edges.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        here = position("Graph.sources", rank, self.size)
        return tuple(source for source, destination in self.edges if destination == here)

    def destinations(self, rank: SupportsIndex) -> tuple[int, ...]:
        """Return to whom edges leave from ``rank``, in the order of the edges.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        here = position("Graph.destinations", rank, self.size)
        return tuple(destination for source, destination in self.edges if source == here)

    def reverse(self) -> Graph:
        """Return the graph with every edge turned round; the edges keep their numbers."""
        return Graph(self.size, tuple((destination, source) for source, destination in self.edges))

    def axis_index(self, axis: str | int | None, operation: str = "axis_index") -> NoReturn:
        """Raise: a graph has no axes.

        Raises:
            TopologyError: Always; the text says what works instead.
        """
        raise TopologyError(
            f"{operation}: a Graph has no axes: expected a Ring or a Mesh, got a Graph of "
            f"{self.size} ranks and {len(self.edges)} edges (axis={axis!r}); use permute for pairs "
            "of ranks, or make the Exchange over a Ring or a Mesh"
        )

    def __repr__(self) -> str:
        return f"Graph({self.size}, {self.edges!r})"


def _edge(number: int, edge: Sequence[SupportsIndex], size: int) -> tuple[int, int]:
    ends = ordered("Graph", f"edge {number}", edge)
    if len(ends) != 2:
        raise TopologyError(
            f"Graph: edge {number} must be a pair (source, destination), got {ends!r}"
        )
    return (
        below("Graph", f"source of edge {number}", ends[0], size),
        below("Graph", f"destination of edge {number}", ends[1], size),
    )
