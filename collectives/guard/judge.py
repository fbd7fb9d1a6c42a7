"""Compares accounts, and speaks only on proof: slow is never taken for wrong.

Four proofs. All of them rest on facts that cannot change any more, so it does not matter that an
account may be some time old:

1. The peer has posted an exchange of the number and phase that this rank waits for, and another
   one: what this rank waits for will never come.
2. The peer has left, or has numbered other exchanges since, without posting the one waited for.
3. Each of the two waits for the other, in exchanges that the other has not posted. (A rank waits
   in one exchange at a time: see ``GroupState.claim``.)
4. The same across two groups, where one thread of each exchanges over both.

A peer one ahead or behind that waits for a third rank is proof of nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .account import Cause

if TYPE_CHECKING:
    from .account import Account, Entry

__all__ = ["compare", "crossed", "finished", "judge"]

_AHEAD = ("forward", "tangent")  # of these, each has a number of its own


def judge(mine: Account, theirs: Account) -> Cause | None:
    """Return why what ``mine`` waits for can never come from the rank of ``theirs``.

    Args:
        mine: Of the rank that asks; it must be waiting.
        theirs: Of a rank that it needs.

    Returns:
        The cause, in words for all ranks; ``None`` without proof.
    """
    waited = mine.waiting
    if waited is None or not waited.needs(theirs.rank):
        return None
    same = theirs.find(waited.key)
    if any(waited.fits(entry, mine.rank, theirs.rank) for entry in same):
        return None  # posted: it comes, or it fails by itself
    if same:
        return _mismatch(mine, theirs, waited, same[-1])
    if _forgotten(waited, theirs):
        return None
    left = theirs.left
    if waited.owner in theirs.closed and not waited.signature.phase.endswith("backward"):
        left = f"closed that Exchange after {theirs.count} exchanges of the group"
    if left:
        return Cause(
            "left",
            mine.rank,
            f"rank {mine.rank} waits in {waited.signature} for rank {theirs.rank}, which {left}"
            + (_LEFT_OUT if _is_backward(waited) else ""),
        )
    passed = _instead_of(waited, theirs)
    if passed is not None:
        return _mismatch(mine, theirs, waited, passed)
    other = theirs.waiting
    if other is None or not other.needs(mine.rank):
        return None
    if any(other.fits(entry, theirs.rank, mine.rank) for entry in mine.find(other.key)):
        return None  # this rank has done its part there
    return None if _forgotten(other, mine) else _mismatch(mine, theirs, waited, other)


def crossed(mine: Account, theirs: Account, there: Account) -> tuple[Cause, Cause] | None:
    """Return why two ranks wait for each other in two groups: for this group and the other one.

    Args:
        mine: Of the rank that asks; it must be waiting.
        theirs: Of a rank that it needs, which waits elsewhere.
        there: Of the rank that asks, in that other group; one thread of it uses both.

    Returns:
        The causes, in words for all ranks of each; ``None`` without proof.
    """
    waited, away = mine.waiting, theirs.elsewhere
    if waited is None or away is None or not away.bound or not waited.needs(theirs.rank):
        return None
    if any(waited.fits(entry, mine.rank, theirs.rank) for entry in theirs.find(waited.key)):
        return None  # posted: it comes
    other = away.entry
    if _forgotten(waited, theirs) or _forgotten(other, there) or not other.needs(there.rank):
        return None
    if any(other.fits(entry, away.rank, there.rank) for entry in there.find(other.key)):
        return None  # this rank has done its part there
    return (
        _crossing((mine.rank, waited), (theirs.rank, away.rank, other)),
        _crossing((away.rank, other), (there.rank, mine.rank, waited)),
    )


def finished(mine: Account, theirs: Account) -> bool:
    """Whether the rank of ``theirs`` has moved all that ``mine`` waits for: then it may end."""
    waited = mine.waiting
    return waited is not None and (
        _forgotten(waited, theirs)
        or any(
            entry.done and waited.fits(entry, mine.rank, theirs.rank)
            for entry in theirs.find(waited.key)
        )
    )


def compare(mine: Entry, other: Entry) -> str:
    """Say in which facts two exchanges differ."""
    differences = mine.signature.differences(other.signature)
    if not differences and " for " in mine.signature.tensors:
        return f"what one sends is not what the other expects: {mine.signature.tensors}"
    return "; ".join(differences) or "lanes, or facts too long to be shown"


def _forgotten(waited: Entry, theirs: Account) -> bool:
    """Whether the peer may have posted it longer ago than its account goes back.

    Forward numbers are posted in order, and a backward after its forward.
    """
    ahead = (entry.signature for entry in theirs.entries if entry.signature.phase in _AHEAD)
    first = min((signature.sequence for signature in ahead), default=math.inf)
    return not theirs.whole and first > waited.signature.sequence


def _instead_of(waited: Entry, theirs: Account) -> Entry | None:
    """Return what the peer has numbered like the exchange waited for, if it has.

    Only forward numbers are consecutive: a backward has its forward's.
    """
    sequence, phase = waited.key
    if phase not in _AHEAD:
        return None
    return next(
        (
            entry
            for entry in theirs.entries
            if entry.signature.sequence == sequence and entry.signature.phase in _AHEAD
        ),
        None,
    )


def _mismatch(mine: Account, theirs: Account, waited: Entry, other: Entry) -> Cause:
    verb = "waits in" if other is theirs.waiting else "ran" if other.done else "started"
    return Cause(
        "mismatch",
        mine.rank,
        f"the ranks are in different exchanges; {compare(waited, other)}"
        f" (rank {mine.rank} / rank {theirs.rank})"
        f"\n    rank {mine.rank} waits in {waited.signature}"
        f"\n    rank {theirs.rank} {verb} {other.signature}{_advice(waited, other)}",
    )


def _crossing(here: tuple[int, Entry], away: tuple[int, int, Entry]) -> Cause:
    rank, waited = here
    peer, its_rank, other = away
    known_as = "" if its_rank == peer else f" as rank {its_rank}"
    return Cause(
        "mismatch",
        rank,
        "the ranks wait for each other in two process groups"
        f"\n    rank {rank} waits in {waited.signature}"
        f"\n    rank {peer} waits in another group{known_as}, in {other.signature}",
    )


def _advice(waited: Entry, other: Entry) -> str:
    """Return what to do where only one of two ranks is in a backward, or in a loop."""
    if _is_backward(waited) != _is_backward(other):
        return _LEFT_OUT
    return _ALONE if len(waited.signature.step) != len(other.signature.step) else ""


def _is_backward(entry: Entry) -> bool:
    """Whether it belongs to a backward; that of a ring loop has forward exchanges of its own."""
    return entry.signature.phase.endswith("backward") or " backward" in entry.signature.op


_ALONE = (
    "\nOne of them is in a loop of even_steps, or marks its steps, and the other is not: leave a"
    " loop early on all ranks or on none"
)
_LEFT_OUT = (
    "\nOne of them leaves a backward out: call backward() on every rank, on a loss that is tied"
    " to its exchanges: loss = exchange.join(loss)"
)
