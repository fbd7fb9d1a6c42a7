"""The exchanges of all ranks side by side.

Ranks number their exchanges alike, but a record holds only the last of them, and one rank's may
begin a few exchanges later than another's. So records are laid beside each other where they agree
longest on numbers and phases, from the oldest on; what they disagree in then stands side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .values import DONE, MOST_ENTRIES, Entry, FlightRecord, Lane

__all__ = ["Line", "Wait", "lay"]


class Wait(NamedTuple):
    """One rank that waits for another.

    Args:
        rank: That waits.
        position: Of the exchange on the line.
        lane: Of it, seen from the rank that waits.
        incoming: It awaits what comes from the peer; else the peer does not take what it sends.
    """

    rank: int
    position: int
    lane: Lane
    incoming: bool

    @property
    def peer(self) -> int:
        """The rank that is waited for."""
        peer = self.lane.source if self.incoming else self.lane.destination
        assert peer is not None
        return peer

    def __str__(self) -> str:
        lane = self.lane
        if self.incoming:
            return f"awaits {lane.awaits or 'a message'} from rank {lane.source} on lane {lane.key}"
        return f"sends {lane.sends or 'a message'} to rank {lane.destination} on lane {lane.key}"


class Line:
    """What each rank ran at each position.

    Args:
        positions: By position, the entry of each rank that has one.
        strangers: Ranks whose record has no exchange in common with the others'.
    """

    def __init__(self, positions: list[dict[int, Entry]], strangers: list[int]) -> None:
        self.positions, self.strangers = positions, strangers

    def last(self, rank: int) -> int:
        """Return the position of the last exchange that a rank started; -1 without any."""
        started = (p for p in reversed(range(len(self.positions))) if rank in self.positions[p])
        return next(started, -1)

    def waits(self) -> list[Wait]:
        """Return who waits for whom, lane by lane."""
        return [
            wait
            for position, entries in enumerate(self.positions)
            for rank, entry in sorted(entries.items())
            if entry.waited
            for wait in waits_of(rank, entry, position)
        ]


def waits_of(rank: int, entry: Entry, position: int = 0) -> list[Wait]:
    """Return for whom a rank waits in an exchange that is under way."""
    waits = []
    for lane in entry.lanes:
        if lane.source not in (None, rank):
            waits.append(Wait(rank, position, lane, incoming=True))
        if lane.destination not in (None, rank):
            waits.append(Wait(rank, position, lane, incoming=False))
    return waits if entry.state != DONE else []


def lay(records: Sequence[FlightRecord]) -> Line:
    """Lay the records of one group beside each other; each rank once."""
    if not records:
        return Line([], [])
    longest = max(records, key=lambda record: len(record.entries))
    shifts = {record.rank: _shift(longest.entries, record.entries) for record in records}
    first = min((shift for shift in shifts.values() if shift is not None), default=0)
    positions: list[dict[int, Entry]] = []
    for record in records:
        shift = shifts[record.rank]
        for i, entry in enumerate(record.entries if shift is not None else ()):
            position = i + (shift or 0) - first
            positions += ({} for _ in range(position + 1 - len(positions)))
            positions[position][record.rank] = entry
    return Line(positions, sorted(rank for rank, shift in shifts.items() if shift is None))


def _shift(one: Sequence[Entry], other: Sequence[Entry]) -> int | None:
    """Return where ``other`` begins, counted from the beginning of ``one``; ``None``: nowhere."""
    keys, others = [e.key for e in one], [e.key for e in other]
    if not others or max(len(keys), len(others)) < MOST_ENTRIES:
        return 0  # nothing was forgotten: both begin with the first exchange of their group
    shifts = range(1 - len(others), len(keys))
    best = max(shifts, key=lambda shift: (_agreement(keys, others, shift), -abs(shift)))
    return best if _agreement(keys, others, best) else None


def _agreement(
    keys: Sequence[tuple[int, str]], others: Sequence[tuple[int, str]], shift: int
) -> int:
    """Return for how many exchanges the two agree, from the first that both remember."""
    pairs = zip(keys[max(0, shift) :], others[max(0, -shift) :], strict=False)
    count = 0
    for mine, theirs in pairs:
        if mine != theirs:
            break
        count += 1
    return count
