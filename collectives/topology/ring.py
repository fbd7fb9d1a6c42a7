"""Ring: ranks in a line whose ends meet, or do not."""

from __future__ import annotations

from typing import SupportsIndex

from .arguments import flag, positive
from .base import Shift
from .cartesian import Cartesian

__all__ = ["Ring"]


class Ring(Cartesian):
    """Ranks in a row: the mesh with one axis, ``"ring"``. Right is rank + 1.

    Args:
        size: Number of ranks. A ring of 1 is its own neighbour; on a ring of 2, left and right
            are the same rank.
        periodic: Whether the last rank's right neighbour is rank 0; if not, the ring is open and
            has ``None`` beyond its ends.

    Raises:
        TopologyError: ``size`` is not a positive int, or ``periodic`` not a bool.

    Example:
        >>> ring = Ring(4)
        >>> ring.left(0), ring.right(0)
        (3, 1)
        >>> ring.shift(0, offset=2)
        Shift(source=2, destination=2)
        >>> Ring(4, periodic=False).shift(0)
        Shift(source=None, destination=1)

    Source: MPI_Cart_create with one dimension, and MPI_Cart_shift.
    """

    __slots__ = ()

    def __init__(self, size: SupportsIndex, *, periodic: bool = True) -> None:
        extent = positive("Ring", "size", size)
        closed = flag("Ring", "periodic", periodic)
        super().__init__(size=extent, shape=(extent,), axes=("ring",), periodic_axes=(closed,))

    @property
    def periodic(self) -> bool:
        """Whether the ends meet."""
        return self.periodic_axes[0]

    def left(self, rank: SupportsIndex) -> int | None:
        """Return rank - 1, ``None`` left of an open ring's rank 0.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        return self._shift("left", rank, 0, 1).source

    def right(self, rank: SupportsIndex) -> int | None:
        """Return rank + 1, ``None`` right of an open ring's last rank.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        return self._shift("right", rank, 0, 1).destination

    def shift(self, rank: SupportsIndex, offset: SupportsIndex = 1) -> Shift:
        """Return from whom and to whom a shift by ``offset`` goes, as ``neighbours`` does.

        Raises:
            TopologyError: No such rank, or an offset that is not an int.

        Source: MPI_Cart_shift.
        """
        return self._shift("shift", rank, 0, offset)

    def __repr__(self) -> str:
        return f"Ring({self.size})" if self.periodic else f"Ring({self.size}, periodic=False)"
