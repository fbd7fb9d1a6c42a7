"""Waits that can be given up: for long messages, in a thread of their own.

gloo's waits end when their connection breaks, with one exception: a peer that dies in the middle of
a message leaves the receiver waiting for the rest of it until its deadline, whatever is done to the
connection (torch 2.13, measured). A thread costs some 0.1 ms, which does not show beside a message
that takes milliseconds, and a few short messages have no middle to speak of.

A thread that was left behind must not come back while the interpreter ends: Python (< 3.14) stops
it by unwinding C++ that does not allow it, and the process dies of SIGABRT. So an end that is near
its deadline waits for it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aside", "join_left_behind"]

_ENDING = 3.0  # seconds that the interpreter may take to end
_LATE = 1.0  # that a wait may end after its deadline
_left_behind: list[Aside] = []


class Aside:
    """One wait in a thread of its own.

    Args:
        wait: Returns when everything has been moved.
        until: By ``time.monotonic``: it has ended by then, or shortly after.
    """

    def __init__(self, wait: Callable[[], float], until: float) -> None:
        self._wait, self._until = wait, until
        self._thread = threading.Thread(
            target=self._run, name=f"collectives-wait-{os.getpid()}", daemon=True
        )
        self._over = threading.Event()
        self._result: list[float] = []
        self._error: BaseException | None = None

    def run(self) -> float:
        """Return what ``wait()`` returns, or raise what it raises.

        Raises:
            ConnectionError: It was given up; the thread is left behind.
        """
        self._thread.start()
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def give_up(self, patience: float) -> None:
        """End :meth:`run`, unless it ends by itself within so many seconds."""
        if not self._over.wait(patience):
            self._error = ConnectionError("Connection closed by peer in the middle of a message")
            _left_behind.append(self)
            self._over.set()

    def join(self, ending: float) -> None:
        """Wait for the end of a thread that was left behind, if it comes within some seconds."""
        left = self._until - time.monotonic()
        if -_LATE < left < ending:
            self._thread.join(left + _LATE)

    def _run(self) -> None:
        try:
            self._result.append(self._wait())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._error = self._error or error
        self._over.set()


def join_left_behind() -> None:
    """Wait for threads that would come back while the interpreter ends."""
    while _left_behind:
        _left_behind.pop().join(_ENDING)


atexit.register(join_left_behind)
