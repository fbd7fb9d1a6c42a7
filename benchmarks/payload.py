"""What is sent between two ranks, and whether it came to the right side."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from collectives import Exchange

__all__ = ["check_received", "payload"]


def payload(rank: int, count: int) -> tuple[Tensor, Tensor]:
    """Return what goes left and what goes right; the values say from whom and where to."""
    return torch.full((count,), 10.0 * rank + 1), torch.full((count,), 10.0 * rank + 2)


def check_received(exchange: Exchange, received: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Raise unless what arrived is what the other rank sent: a wrong answer is no contestant.

    Args:
        exchange: Of two ranks.
        received: Pairs of (from left, from right).
    """
    peer = 1 - exchange.rank
    for from_left, from_right in received:
        # What it meant for its right comes from my left, on two ranks too.
        if not (from_left == 10.0 * peer + 2).all() or not (from_right == 10.0 * peer + 1).all():
            raise RuntimeError(f"wrong values on rank {exchange.rank}: {from_left}, {from_right}")
