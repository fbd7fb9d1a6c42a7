"""Ranks in an order, and who sends what to whom when all of them speak: plans, no torch.

A line is the whole topology by rank, or the ranks along one axis of a mesh. Its plans connect any
two of its ranks, whatever the topology's edges are and whether or not an axis is periodic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import Lane, Plan

if TYPE_CHECKING:
    from .topology import Topology

__all__ = ["Line", "line_of", "shares"]


@dataclass(frozen=True, slots=True)
class Line:
    """The ranks that take part in one operation, seen from one of them.

    Args:
        ranks: Of the topology; position k on the line is ``ranks[k]``.
        position: Of this rank on the line.
        size: Ranks of the topology.
    """

    ranks: Sequence[int]
    position: int
    size: int

    def __len__(self) -> int:
        return len(self.ranks)

    def to_each(self, op: str) -> Plan:
        """Return the plan in which every rank sends something to each, itself included.

        Lanes from earlier positions come first, then those that leave (in the order of their
        destinations, this rank's own among them), then those from later positions: see
        :meth:`split_lanes`.
        """
        count, here, me = len(self), self.position, self.ranks[self.position]
        lanes = [Lane(q * count + here, None, self.ranks[q]) for q in range(here)]
        for q, rank in enumerate(self.ranks):
            lanes.append(Lane(here * count + q, rank, me if q == here else None))
        lanes += [Lane(q * count + here, None, self.ranks[q]) for q in range(here + 1, count)]
        return Plan(op, me, self.size, tuple(lanes))

    def to_next(self, op: str) -> Plan:
        """Return the plan in which every rank sends to the next position, the last to the first."""
        count, here = len(self), self.position
        lane = Lane(0, self.ranks[(here + 1) % count], self.ranks[here - 1])
        return Plan(op, self.ranks[here], self.size, (lane,))

    def from_one(self, op: str, source: int) -> Plan:
        """Return the plan in which one position sends something to each, itself included."""
        here, me = self.position, self.ranks[self.position]
        lanes: tuple[Lane, ...] = (Lane(here, None, self.ranks[source]),)
        if here == source:
            lanes = tuple(
                Lane(q, rank, me if q == here else None) for q, rank in enumerate(self.ranks)
            )
        return Plan(op, me, self.size, lanes)


def line_of(topology: Topology, rank: int, axis: str | int | None, op: str) -> Line:
    """Return the line through a rank along an axis, or all ranks where ``axis`` is ``None``.

    Raises:
        TopologyError: No such axis, or no axes at all.
    """
    if axis is None:
        return Line(range(topology.size), rank, topology.size)
    index = topology.axis_index(axis, op)  # a Graph has the method too: it raises
    ranks: tuple[int, ...] = topology.along(index, rank)  # type: ignore[attr-defined]
    return Line(ranks, ranks.index(rank), topology.size)


def shares(total: int, count: int) -> list[int]:
    """Return ``count`` sizes that sum to ``total``, as equal as possible, larger ones first.

    Source: torch.tensor_split, numpy.array_split.
    """
    least, more = total // count, total % count  # no divmod: compilers know none of unknown sizes
    return [least + 1 if q < more else least for q in range(count)]
