"""What every topology is: a frozen number of ranks, and the two ends of a shift."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

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
    def __repr__(self) -> str: ...
