"""Talks to the store in a thread of its own.

A store whose host is stopped blocks its clients without limit, whatever timeout they give (torch
2.13, measured). So nobody else ever calls it: others wait for the clerk, each as long as it likes.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clerk", "ClerkTimeoutError"]

T = TypeVar("T")

# Seconds after which a store that has not answered is taken for frozen, and asked no more.
_FROZEN = 2.0
_SLICE = 0.5  # seconds between two looks


class ClerkTimeoutError(TimeoutError):
    """The store did not answer in time."""


class _Job(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._finished = threading.Event()
        self._made = time.monotonic()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            self._error = error
        self._finished.set()

    @property
    def finished(self) -> bool:
        return self._finished.is_set()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends so soon; not waited for where it has taken long enough already."""
        over = self._made + _FROZEN - time.monotonic()
        return self._finished.wait(max(0.0, min(seconds, over)))

    def wait(self, seconds: float, look: Callable[[], None] | None) -> T:
        end = time.monotonic() + seconds
        slice_ = seconds if look is None else _SLICE
        while not self._finished.wait(min(slice_, end - time.monotonic())):
            if look is not None:
                look()
            if time.monotonic() >= end:
                raise ClerkTimeoutError(f"the store did not answer within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result[0]


class Clerk:
    """Runs calls one after another in a thread, which starts with the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._late: _Job[object] | None = None  # nobody waits for it any more

    def call(
        self, call: Callable[[], T], seconds: float, look: Callable[[], None] | None = None
    ) -> T:
        """Return what ``call()`` returns, or raise what it raises.

        Args:
            call: Talks to the store.
            seconds: How long to wait for it.
            look: Called now and then meanwhile; what it raises ends the wait.

        Raises:
            ClerkTimeoutError: It took longer, with what is left of an earlier call that did; or the
                store is frozen.
        """
        begun = time.monotonic()
        late = self._late
        if late is not None and not late.ends_within(seconds):
            raise ClerkTimeoutError("the store has not answered an earlier call")
        seconds -= time.monotonic() - begun
        job = _Job(call)
        self._start()
        self._jobs.put(job)  # type: ignore[arg-type]
        try:
            return job.wait(seconds, look)
        finally:
            if not job.finished:
                self._late = job  # type: ignore[assignment]

    def ask(self, call: Callable[[], T], seconds: float) -> T | None:
        """Return what ``call()`` returns; ``None`` if it raises or takes longer."""
        try:
            return self.call(call, seconds)
        except Exception:  # noqa: BLE001 - without the store, what is known here must do
            return None

    def close(self, seconds: float) -> None:
        """End the thread; wait that long for it, and leave it behind if the store is frozen."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name=f"collectives-clerk-{os.getpid()}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # or it would hold what it was made for until the next one comes
