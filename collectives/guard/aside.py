"""Waits that can be given up: for long messages, in a thread of their own.

gloo's waits end when their connection breaks, with one exception: a peer that dies in the middle of
a message leaves the receiver waiting for the rest of it until its deadline, whatever is done to the
connection (torch 2.13, measured). A thread costs some 0.1 ms, which does not show beside a message
that takes milliseconds, and short messages have no middle to speak of.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aside"]


class Aside:
    """One wait in a thread of its own.

    Args:
        wait: Returns when everything has been moved.
    """

    def __init__(self, wait: Callable[[], float]) -> None:
        self._wait = wait
        self._over = threading.Event()
        self._result: list[float] = []
        self._error: BaseException | None = None

    def run(self) -> float:
        """Return what ``wait()`` returns, or raise what it raises.

        Raises:
            ConnectionError: It was given up; the thread is left behind.
        """
        name = f"collectives-wait-{os.getpid()}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def give_up(self, patience: float) -> None:
        """End :meth:`run`, unless it ends by itself within so many seconds."""
        if not self._over.wait(patience):
            self._error = ConnectionError("Connection closed by peer in the middle of a message")
            self._over.set()

    def _run(self) -> None:
        try:
            self._result.append(self._wait())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._error = self._error or error
        self._over.set()
