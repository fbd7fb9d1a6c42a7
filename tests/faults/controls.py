"""What is no fault: slow is not wrong."""

from __future__ import annotations

import sys
import time
from signal import SIGCONT, SIGSTOP

import torch

from collectives import Exchange, Ring

from .loop import Loop, loop
from .row import DEADLINE, NOTHING, STORE, Expected, Row

__all__ = ["CONTROLS"]


def come_late(at: Loop) -> None:
    time.sleep(2.0)
    at.both_ways()


def come_late_while_the_store_is_slow(at: Loop) -> None:
    at.player.send_signal(STORE, SIGSTOP, then=SIGCONT, after=2.0)
    time.sleep(2.5)
    at.both_ways()


def end_at_the_last_step(at: Loop) -> None:
    """End without waiting for the others, as where the group is not the adapter's own."""
    at.both_ways()
    if at.step == 7:
        sys.exit(0)


def come_late_and_end(at: Loop) -> None:
    time.sleep(2.5)
    end_at_the_last_step(at)


def hand_on(at: Loop) -> None:
    """Send towards the last rank, and end as soon as that is done: first rank 0, with the store."""
    chain = Exchange(lambda size: Ring(size, periodic=False), at.adapter, timeout=DEADLINE)
    sent = [torch.full((64,), float(at.exchange.rank)) for _ in range(2)]
    got = chain.exchange(to_left=None, to_right=sent)
    rank = at.exchange.rank
    if rank and not all(bool((x == rank - 1).all()) for x in got.from_left):
        at.player.tell("corrupt", step=at.step, rank=rank - 1)
    if at.step == 7:
        sys.exit(0)


def hand_on_late(at: Loop) -> None:
    time.sleep(2.5)
    hand_on(at)


CONTROLS = (
    Row("none", loop(), NOTHING),
    Row("none, two ranks, sides differ", loop(), NOTHING, size=2),
    Row("slow rank, 2 s of 4 s", loop(come_late), NOTHING),
    # Of four: rank 1 has all that it needs, and ends while its neighbours wait for rank 3.
    Row(
        "a rank is done and ends, another is slow",
        loop(come_late_and_end, usually=end_at_the_last_step, by=3, at=7),
        Expected((SystemExit,), within=2.5, code=0),
    ),
    Row(
        "the store's host is done and ends, another is slow",
        loop(hand_on_late, usually=hand_on, by=3, at=7),
        Expected((SystemExit,), within=2.5, code=0),
    ),
    Row(
        "slow rank and slow store",
        loop(come_late_while_the_store_is_slow),
        NOTHING,
        store="outside",
    ),
)
