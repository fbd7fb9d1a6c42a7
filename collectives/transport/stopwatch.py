"""Time for a start that torch cannot bound: some of its calls wait five times as long, or for ever.

A client of torch's store waits without end for an answer of a listener that is something else, and
gloo gives its peers five times the timeout to connect. So such calls are made in a thread of their
own, and the caller leaves it behind when the time is up. The caller waits in slices, so that
Ctrl-C is honoured.

A thread that comes out of torch while the interpreter ends would abort the process (Python before
3.14 unwinds C++ that does not allow it). So the end of the process waits for helpers, for a moment.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar, cast

__all__ = ["Stopwatch", "TimeIsUpError", "call_bounded", "start_helper"]

T = TypeVar("T")

_SLICE = 0.05  # seconds
_PATIENCE = 1.0  # for all helpers together, when the process ends
_helpers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class TimeIsUpError(Exception):
    """A call did not return in time; it is left behind in its thread."""


class Stopwatch:
    """How much of the time for a start is left, and what it waits for.

    Args:
        seconds: For the whole of it.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self.stop = threading.Event()
        self.awaited = "the start"

    def left(self) -> float:
        """Return the seconds that are left, at least a few milliseconds."""
        return max(0.01, self._deadline - time.monotonic())

    def gone(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._deadline + self.seconds

    def over(self) -> bool:
        """Return whether the time is up, or nobody waits any more."""
        return self.stop.is_set() or time.monotonic() > self._deadline


class _Call(threading.Thread, Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__(name="collectives-start", daemon=True)
        self._function = function
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


def call_bounded(
    function: Callable[[], T], seconds: float, look: Callable[[], None] | None = None
) -> T:
    """Return what ``function`` returns in a thread of its own, or raise what it raises.

    Args:
        function: May block for ever.
        seconds: How long to wait for it.
        look: Called from time to time while waiting; what it raises ends the wait.

    Raises:
        TimeIsUpError: It did not return in time.
    """
    call = _Call(function)
    _helpers.add(call)
    call.start()
    deadline = time.monotonic() + seconds
    while call.is_alive():
        call.join(min(_SLICE, max(0.0, deadline - time.monotonic())))
        if call.is_alive() and time.monotonic() > deadline:
            raise TimeIsUpError
        if look is not None and call.is_alive():
            look()
    return call.result()


def start_helper(target: Callable[[], None], name: str) -> None:
    """Run a function in a thread that the end of the process waits for, but not for long."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    _helpers.add(thread)
    thread.start()


def _join_helpers() -> None:
    end = time.monotonic() + _PATIENCE
    for thread in list(_helpers):
        thread.join(max(0.0, end - time.monotonic()))


atexit.register(_join_helpers)
