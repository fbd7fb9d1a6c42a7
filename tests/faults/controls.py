"""What is no fault: slow is not wrong."""

from __future__ import annotations

import time
from signal import SIGCONT, SIGSTOP

from .loop import Loop, loop
from .row import NOTHING, STORE, Row

__all__ = ["CONTROLS"]


def come_late(at: Loop) -> None:
    time.sleep(2.0)
    at.both_ways()


def come_late_while_the_store_is_slow(at: Loop) -> None:
    at.player.send_signal(STORE, SIGSTOP, then=SIGCONT, after=2.0)
    time.sleep(2.5)
    at.both_ways()


CONTROLS = (
    Row("none", loop(), NOTHING),
    Row("none, two ranks, sides differ", loop(), NOTHING, size=2),
    Row("slow rank, 2 s of 4 s", loop(come_late), NOTHING),
    Row(
        "slow rank and slow store",
        loop(come_late_while_the_store_is_slow),
        NOTHING,
        store="outside",
    ),
)
