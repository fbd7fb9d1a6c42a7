"""What ranks in several hosts do: they pass numbers around a ring, and look at what comes."""

from __future__ import annotations

import time

import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

from .job import Rank, Report

__all__ = ["exchange_rightly", "pass_around"]

_START = 40.0  # seconds for the ranks to meet


def pass_around(rank: Rank, *, deadline: float, count: int, before: int, after: int) -> None:
    """Exchange before and after the gate.

    Args:
        rank: Of this process.
        deadline: Of each exchange, in seconds.
        count: Numbers in each tensor.
        before: Exchanges before the gate.
        after: Exchanges after it.
    """
    with RawDDPAdapter(timeout=_START) as adapter:
        exchange = Exchange(Ring, adapter, timeout=deadline)
        for step in range(before):
            exchange_rightly(exchange, step, count, rank.report)
        rank.wait_at_gate()
        for step in range(before, before + after):
            exchange_rightly(exchange, step, count, rank.report)


def exchange_rightly(exchange: Exchange, step: int, count: int, report: Report) -> None:
    """Exchange with both neighbours, and raise unless what comes is what they sent."""
    rank, size = exchange.rank, exchange.size
    to_left, to_right = (torch.full((count,), _number(rank, step, side)) for side in (0, 1))
    began = time.monotonic()
    try:
        received = exchange.exchange(to_left=to_left, to_right=to_right)
    finally:
        report.elapsed = time.monotonic() - began
        report.longest = max(report.longest, report.elapsed)
    assert (received.from_left == _number((rank - 1) % size, step, 1)).all()
    assert (received.from_right == _number((rank + 1) % size, step, 0)).all()


def _number(rank: int, step: int, side: int) -> float:
    return float(step * 100 + rank * 10 + side)
