"""The thread that notices: one per process, asleep but for a look now and then.

It looks whether an exchange takes longer than :data:`STALL`, which costs nothing while none does;
whether a group was destroyed while others may still wait for this rank; and whether Ctrl-C or
SIGTERM came while the main thread is stuck in C++, where Python cannot run their handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING

from ..settings import heeded_signals, stall_limit
from .clerk import Clerk
from .guard import describe
from .wakeup import Wakeup

if TYPE_CHECKING:
    from ..flight import Flight
    from .guard import Guard

__all__ = ["Watchdog", "guards", "watchdog"]

_POLL = 0.25  # seconds between two looks, at most
_LINGER = 1.5  # seconds that others have to read why a group failed
_PATIENCE = 0.4  # seconds that an exchange may go on after a signal


class Watchdog:
    """Looks after all groups of this process."""

    def __init__(self) -> None:
        self.clerk = Clerk()
        self._stall, self._signals = stall_limit(os.environ), heeded_signals(os.environ)
        self._guards: weakref.WeakSet[Guard] = weakref.WeakSet()
        self._wakeup = Wakeup()
        self._stopping = False
        self._signal: tuple[int, float, list[Flight]] | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"collectives-watchdog-{os.getpid()}", daemon=True
        )
        self._thread.start()

    def add(self, guard: Guard) -> None:
        """Look after a group from now on."""
        self._guards.add(guard)
        self.listen()

    def listen(self) -> None:
        """Hear of signals, also after somebody else has taken them over."""
        self._wakeup.listen()

    def guards(self) -> list[Guard]:
        """Return the groups that are looked after."""
        with contextlib.suppress(RuntimeError):  # one was added meanwhile
            return list(self._guards)
        return []

    def close(self, error: BaseException | None) -> None:
        """Say good-bye on all groups, and end the threads; bounded.

        Args:
            error: That the process ends with.
        """
        for guard in self.guards():
            if error is not None:
                guard.raised(error)
            guard.leave(f"ended after {guard.state.sequence} exchanges")
            guard.linger(_LINGER)
        self._stopping = True
        self._wakeup.nudge()
        self._thread.join(1.0)
        self.clerk.close(1.0)
        if not self._thread.is_alive():
            self._wakeup.close()

    def forked(self) -> None:
        """Forget everything, in a forked child: threads, sockets and groups are the parent's."""
        self._wakeup.forget()

    def _run(self) -> None:
        while not self._stopping:
            self._hear(self._wakeup.wait(min(_POLL, self._stall / 2)))
            guards = self.guards()
            for guard in guards:
                self._look_after(guard)
            for guard in guards if len(guards) > 1 else ():
                guard.tell_elsewhere()

    def _look_after(self, guard: Guard) -> None:
        try:
            if guard.alive():
                guard.look(self._stall)
            else:
                self._guards.discard(guard)
                self._bury(guard)
        except Exception as error:  # noqa: BLE001 - the other groups still need this thread
            self._guards.discard(guard)
            warnings.warn(
                f"collectives: a group is not watched any more (rank {guard.rank} of {guard.size}),"
                f" because of {describe(error)}; please report this",
                RuntimeWarning,
                stacklevel=1,
            )

    def _bury(self, guard: Guard) -> None:
        """Tell the others at once that this rank destroyed the group.

        Its connections stay open as long as anything refers to it, a DDP module or an Exchange.
        """
        guard.leave(f"destroyed its process group after {guard.state.sequence} exchanges")
        guard.interrupt()
        guard.state.forget()

    def _hear(self, signals: list[int]) -> None:
        """Break waits of the main thread that have gone on for too long after a signal.

        Not at once, and only where Python has a handler to run: a handler that merely takes a note
        (Lightning's for SIGTERM) must not cost an exchange that is about to succeed. One that waits
        for a slower rank is lost; ``COLLECTIVES_SIGNALS=SIGINT`` lets it wait.
        """
        for number in signals:
            if number in self._signals and callable(signal.getsignal(number)):
                waiting = [g.state.waiting for g in self.guards() if _in_main_thread(g)]
                flights = [flight for flight in waiting if flight is not None]
                self._signal = (number, time.monotonic() + _PATIENCE, flights)
        if self._signal is None or time.monotonic() < self._signal[1]:
            return
        (number, _, flights), self._signal = self._signal, None
        name = signal.Signals(number).name
        for guard in self.guards():
            if any(guard.state.waiting is flight for flight in flights):
                text = f"rank {guard.rank} was interrupted by {name}"
                guard.fail(guard.report("interrupted", text))


def _in_main_thread(guard: Guard) -> bool:
    return guard.state.thread == threading.main_thread().ident


_watchdog: list[Watchdog] = []


def guards() -> list[Guard]:
    """Return those of all groups of this process that are looked after."""
    return _watchdog[0].guards() if _watchdog else []


def watchdog() -> Watchdog:
    """Return the one of this process; it starts with the first group that is looked after."""
    if not _watchdog:
        _watchdog.append(Watchdog())
        atexit.register(_at_exit)
    return _watchdog[0]


def _at_exit() -> None:
    if _watchdog:
        # Set by Python when it prints an uncaught exception.
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        _watchdog.pop().close(error)


def _forget_parent() -> None:
    if _watchdog:
        _watchdog.pop().forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
