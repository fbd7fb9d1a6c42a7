"""What is no fault: slow is not wrong."""

from __future__ import annotations

import sys
import time
from signal import SIGCONT, SIGSTOP

from .loop import Loop, loop
from .row import NOTHING, STORE, Expected, Row

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
        "slow rank and slow store",
        loop(come_late_while_the_store_is_slow),
        NOTHING,
        store="outside",
    ),
)
