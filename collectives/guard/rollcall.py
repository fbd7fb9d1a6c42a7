"""Who comes to the next generation of a group, and who cannot come any more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from .account import Cause
    from .board import Board

__all__ = ["Absent", "await_none", "call_roll"]

_LOOK = 0.25  # seconds between two looks for ranks that have left
_MANY = 32  # ranks that are looked for
# Seconds for a rank whose connection was closed to come all the same: mostly its process is gone,
# but where a collective of torch's failed on a rank, that lives, it has had its own error by then.
_RETURN = 3.0


class Absent(NamedTuple):
    """Who did not come.

    Args:
        ranks: All of them.
        gone: Why one of them cannot come any more, in words; "" where they are only late.
    """

    ranks: list[int]
    gone: str = ""


def call_roll(board: Board, size: int, cause: Cause | None, seconds: float) -> Absent:
    """Meet the other ranks: wait for those that are late, but for none that is gone.

    Called by: the clerk, since it asks the store; after this rank has called for renewal.

    Args:
        board: Of the group.
        size: Of the group.
        cause: Why the group failed, as far as this rank knows.
        seconds: To wait for the others.
    """
    begun, looked = time.monotonic(), 0.0
    while missing := board.missing(size):
        now = time.monotonic()
        if now - looked >= _LOOK:
            looked = now
            gone = _why_gone(board, missing[:_MANY])
            if not gone and cause is not None and cause.lost in missing and now - begun > _RETURN:
                gone = f"rank {cause.lost} is lost: {cause.text}"
            if gone:
                return Absent(missing, gone)
        if now - begun > seconds:
            return Absent(missing)
        time.sleep(0.02)
    return Absent([])


def await_none(missing: Callable[[int], list[int]], size: int, seconds: float) -> None:
    """Ask until nobody is missing, or for so many seconds."""
    end = time.monotonic() + seconds
    while missing(size) and time.monotonic() < end:
        time.sleep(0.02)


def _why_gone(board: Board, ranks: list[int]) -> str:
    """Return what the first of these ranks said that has said good-bye; "" if none has.

    Who calls for renewal says good-bye as well, but after that.
    """
    for rank in ranks:
        account = board.account(rank)
        if account is not None and account.left and not board.calls_for_renewal(rank):
            return f"rank {rank} {account.left}"
    return ""
