"""What every topology is: a frozen number of ranks, and the two ends of a shift."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from . import mixing, networks

if TYPE_CHECKING:
    import numpy as np
    from networkx import MultiDiGraph
    from numpy.typing import NDArray

    from .graph import Graph

__all__ = ["Shift", "Topology"]


class Shift(NamedTuple):
    """The two ends of a shift, seen from one rank; ``None`` beyond the end of an open axis.

    The order is that of MPI_Cart_shift (``rank_source``, ``rank_dest``), whose MPI_PROC_NULL is
    ``None`` here.
    """

    source: int | None
    destination: int | None


@dataclass(frozen=True, slots=True)
class Topology(ABC):
    """A number of ranks and who is whose neighbour.

    Frozen, hashable, picklable. The repr can be pasted and is equal on every rank: it is what the
    ranks compare to find out that they were given different topologies.

    Args:
        size: Number of ranks; they are ``0..size - 1``.
    """

    size: int

    @abstractmethod
    def axis_index(self, axis: str | int | None, operation: str = "axis_index") -> int:
        """Return which axis ``axis`` is.

        Args:
            axis: Name or index; ``None`` where there is only one axis.
            operation: What the error text starts with.

        Raises:
            TopologyError: There is no such axis, or no axis at all.
        """

    @abstractmethod
    def to_graph(self) -> Graph:
        """Return the edges between neighbours, with weights."""

    @abstractmethod
    def mixing_matrix(self) -> NDArray[np.float64]:
        """Return W, size x size: x_i <- sum_j W[i, j] x_j, so row i says what rank i takes."""

    def spectral_gap(self) -> float:
        """Return one minus the second largest modulus of the mixing matrix' eigenvalues.

        In the long run each step of averaging (each period of a Schedule) leaves 1 - gap of the
        distance from the average; where the matrix is symmetric, each single step leaves no more.
        0: some ranks never hear of each other.

        Raises:
            TopologyError: The weights of the ranks do not sum to one.
        """
        return mixing.gap_of(f"{self!r}.spectral_gap", self.mixing_matrix())

    def is_doubly_stochastic(self) -> bool:
        """Whether averaging keeps the mean: rows and columns sum to one, nothing is negative."""
        return mixing.is_doubly_stochastic(self.mixing_matrix())

    def to_networkx(self) -> MultiDiGraph:
        """Return the edges as a networkx MultiDiGraph; networkx must be installed.

        An edge's key is its number, its attribute ``weight`` its weight; a node's attribute
        ``self_weight`` is what the rank keeps of its own.

        Raises:
            TopologyError: networkx is not installed, or the edges change with the step.
        """
        return networks.network_of(self.to_graph())

    @abstractmethod
    def __repr__(self) -> str: ...
