"""Where the ranks are that keep others waiting, in words: for a deadline that has passed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .account import Account
    from .board import Board

__all__ = ["whereabouts"]

_MANY = 32  # ranks that are asked where they are
_NAMED = 4


def whereabouts(board: Board, rank: int, peers: Sequence[int]) -> str:
    """Say where the ranks are that keep ``peers``, and so ``rank``, waiting."""
    found = _follow(board, rank, peers)
    if not found:
        return "the ranks wait for each other"
    return "; ".join(_where(rank, account) for rank, account in found[:_NAMED])


def _follow(board: Board, rank: int, peers: Sequence[int]) -> list[tuple[int, Account | None]]:
    """Follow the ranks that wait to those that do not."""
    seen, queue = {rank}, list(peers)
    found: list[tuple[int, Account | None]] = []
    while queue and len(seen) <= _MANY:
        rank = queue.pop(0)
        if rank in seen:
            continue
        seen.add(rank)
        account = board.account(rank)
        waiting = None if account is None else account.waiting
        if waiting is None:
            found.append((rank, account))
        else:
            queue += [*waiting.sends, *waiting.awaits]
    return found


def _where(rank: int, account: Account | None) -> str:
    if account is not None and account.left:
        return f"rank {rank} {account.left}"
    if account is not None and account.elsewhere is not None:
        return f"rank {rank} waits in another group, in {account.elsewhere.entry.signature}"
    return (
        f"rank {rank} is not stuck in any exchange: it computes, waits for something else (data, a"
        " collective), is stopped, or cannot be reached"
    )
