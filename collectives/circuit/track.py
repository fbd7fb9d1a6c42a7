"""Whose block is where: the ranks along one axis, seen from one of them. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ..plan import Lane
from ..topology import Cartesian, Topology

__all__ = ["Track", "find_track"]


@dataclass(frozen=True, slots=True)
class Track:
    """The ranks along one axis, seen from one of them; blocks go to the right.

    Args:
        axis: Its name.
        ranks: Of the topology, by their position on the axis.
        position: Of this rank among them.
        periodic: Whether blocks go on from the last rank to the first.

    Example:
        >>> track = Track("ring", ranks=(0, 1, 2, 3), position=1, periodic=True)
        >>> [track.source(hop) for hop in range(4)]
        [1, 0, 3, 2]
        >>> [replace(track, periodic=False).source(hop) for hop in range(4)]
        [1, 0, None, None]
    """

    axis: str
    ranks: tuple[int, ...]
    position: int
    periodic: bool

    @property
    def extent(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def source(self, hop: int) -> int | None:
        """Return whose block is here after ``hop`` hops; ``None``: one from beyond an open end."""
        return self._at(self.position - hop)

    def relay(self, hop: int) -> Lane:
        """Return hop number ``hop``, in which each rank hands on the block that it has.

        On an open track only blocks that exist are handed on.
        """
        here, onward = self.source(hop), self._at(self.position + 1)
        left = None if here is None else self._at(self.position - 1)
        has_block = self.source(hop - 1) is not None
        return Lane(0, onward if has_block else None, left)

    def direct(self, hop: int) -> Lane:
        """Return hop number ``hop`` where each rank sends its own block all the way."""
        return Lane(0, self._at(self.position + hop), self._at(self.position - hop))

    def closed(self) -> Track:
        """Return the track whose ends meet."""
        return replace(self, periodic=True)

    def mirrored(self) -> Track:
        """Return the track on which what went to the right goes to the left."""
        return replace(self, ranks=self.ranks[::-1], position=self.extent - 1 - self.position)

    def _at(self, position: int) -> int | None:
        if self.periodic:
            position %= self.extent
        return self.ranks[position] if 0 <= position < self.extent else None


def find_track(topology: Topology, rank: int, axis: str | int | None, operation: str) -> Track:
    """Return the track through ``rank`` along ``axis``.

    Raises:
        TopologyError: No such axis, or no axes at all.
    """
    index = topology.axis_index(axis, operation)
    assert isinstance(topology, Cartesian)  # a Graph has just raised
    return _track(topology, rank, index)


@lru_cache(maxsize=64)  # the same for every loop
def _track(topology: Cartesian, rank: int, index: int) -> Track:
    ranks = topology.along(index, rank)
    return Track(
        axis=topology.axes[index],
        ranks=ranks,
        position=ranks.index(rank),
        periodic=topology.periodic_axes[index],
    )
