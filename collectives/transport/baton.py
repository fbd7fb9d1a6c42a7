"""Many threads of which one runs at a time.

Whoever holds the baton runs; it is handed on only where a rank waits, pauses or ends. So a program
of many ranks is as deterministic as one of a single thread, and "nobody can run" is a fact that is
seen at once rather than guessed from a timeout. The caller's thread is the referee: it sleeps
while a rank runs, and gets the baton when no rank can.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

__all__ = ["Baton", "RankEnded"]

# Runs of torch with less end in a segmentation fault where Python has a RecursionError (modules or
# autograd Functions that call themselves); only touched pages cost memory.
_STACK = 1024 * 1024
# A lock cannot be interrupted by Ctrl-C on every platform, so the referee waits in slices.
_SLICE = 0.5


class RankEnded(SystemExit):
    """Ends a rank whose world is over; for nobody to catch.

    A SystemExit, so that a thread that is hit by it in its last lines still ends in silence.
    """


class Baton:
    """Runs the threads of ``size`` ranks, one at a time.

    Args:
        size: Number of ranks.
        seed: Of the random order in which ranks get the baton; None: first come, first served.
    """

    def __init__(self, size: int, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._turns = [_taken() for _ in range(size)]
        self._referee = _taken()
        self._ready = deque(range(size))
        self._running = 0
        self._left = size
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether no rank may run any more."""
        return self._ended

    def run(self, body: Callable[[int], None], stalled: Callable[[], None]) -> None:
        """Run ``body(rank)`` for all ranks and return when all of their threads are gone.

        Args:
            body: A rank's program.
            stalled: Called in this thread when no rank can run; wakes at least one.
        """
        threads: list[threading.Thread] = []
        try:
            self._start(threads, body)
            while not self._is_over():
                self._hand_on()
                while not self._referee.acquire(timeout=_SLICE):
                    pass
                if not self._is_over():
                    stalled()
        except BaseException:
            self._interrupt(threads)
            raise
        finally:
            self._end(threads)

    def wake(self, rank: int) -> None:
        """Let a sleeping rank run again when its turn comes."""
        self._ready.append(rank)

    def sleep(self, rank: int) -> None:
        """Hand the baton on, and return when ``rank``, who calls this, was woken and has it.

        Raises:
            RankEnded: The world is over.
        """
        self._hand_on()
        self._await_turn(rank)

    def pause(self, rank: int) -> None:
        """In a random order: let others run first, perhaps."""
        if self._random is not None:
            self.wake(rank)
            self.sleep(rank)

    def stop(self) -> None:
        """End all ranks as soon as the one that calls this returns."""
        if not self._ended:
            self._ended = True
            self._referee.release()

    def _is_over(self) -> bool:
        return self._ended or not self._left

    def _hand_on(self) -> None:
        if self._ended:
            return
        if not self._ready:
            self._referee.release()
            return
        if self._random is not None:
            self._ready.rotate(self._random.randrange(len(self._ready)))
        self._running = self._ready.popleft()
        self._turns[self._running].release()

    def _await_turn(self, rank: int) -> None:
        if not self._ended:
            self._turns[rank].acquire()
        if self._ended:
            raise RankEnded

    def _start(self, threads: list[threading.Thread], body: Callable[[int], None]) -> None:
        def main(rank: int) -> None:
            with suppress(RankEnded):
                self._await_turn(rank)
                body(rank)
            self._left -= 1
            self._hand_on()

        before = threading.stack_size(_STACK)
        try:
            for rank in range(len(self._turns)):
                name = f"simulated rank {rank}"
                thread = threading.Thread(target=main, args=(rank,), name=name, daemon=True)
                thread.start()
                threads.append(thread)
        finally:
            threading.stack_size(before)

    def _interrupt(self, threads: Sequence[threading.Thread]) -> None:
        """Break into the rank that computes: it may not come by here for a long time."""
        self._ended = True
        if self._running < len(threads):
            ident = ctypes.c_ulong(threads[self._running].ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(RankEnded))

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        """Let every thread leave, one after the other, the running one first."""
        self._ended = True
        for rank in sorted(range(len(threads)), key=lambda rank: rank != self._running):
            if self._turns[rank].locked():
                self._turns[rank].release()
            threads[rank].join()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
