"""A wait that was given up: its thread does not come back while the interpreter ends."""

from __future__ import annotations

import threading
import time

import pytest

from collectives.guard.aside import Aside, join_left_behind


def given_up(wait: threading.Event, until: float) -> threading.Thread:
    """Start a wait, give it up, and return its thread."""

    def long_wait() -> float:
        wait.wait(20.0)
        return 0.0

    aside = Aside(long_wait, until)
    threading.Timer(0.05, aside.give_up, (0.05,)).start()
    with pytest.raises(ConnectionError, match="in the middle of a message"):
        aside.run()
    (thread,) = (t for t in threading.enumerate() if t.name.startswith("collectives-wait"))
    return thread


def test_one_that_ends_soon_is_waited_for() -> None:
    over = threading.Event()
    thread = given_up(over, time.monotonic() + 1.0)
    threading.Timer(0.3, over.set).start()
    join_left_behind()
    assert not thread.is_alive()


def test_one_that_does_not_is_left() -> None:
    over = threading.Event()
    thread = given_up(over, time.monotonic() + 300.0)
    join_left_behind()
    assert thread.is_alive()
    over.set()
    thread.join(10.0)
    assert not thread.is_alive()
