"""Hears of signals while the main thread waits in C++ and cannot run Python's handlers.

``signal.set_wakeup_fd`` makes Python's own C handler write a byte to a socket; the watchdog reads
it. Where somebody else has such a descriptor already (asyncio, and Jupyter with it), the bytes are
passed on. The main thread alone may set it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading

__all__ = ["Wakeup"]


class Wakeup:
    """A socket on which signals arrive, and calls of :meth:`nudge`."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)  # noqa: FBT003 - its signature
        self._next = -1  # who had the descriptor before

    def listen(self) -> None:
        """Ask for signals, if this is the main thread; also after somebody took our place."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        if before != self._theirs.fileno():
            self._next = before

    def wait(self, seconds: float) -> list[int]:
        """Return the signals that arrive; at the first of them, or after so long."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return []
        try:
            numbers = self._ours.recv(4096)
        except BlockingIOError:
            return []
        numbers = bytes(number for number in numbers if number)
        if numbers and self._next >= 0:
            with contextlib.suppress(OSError):
                os.write(self._next, numbers)
        return list(numbers)

    def nudge(self) -> None:
        """End a :meth:`wait` at once."""
        with contextlib.suppress(OSError):
            self._theirs.send(b"\0")

    def close(self) -> None:
        """Give the descriptor back to whoever had it, and close the sockets."""
        self.forget()
        self._ours.close()
        self._theirs.close()

    def forget(self) -> None:
        """Give the descriptor back; a forked child must not write into its parent's socket."""
        if threading.current_thread() is not threading.main_thread():
            return
        with contextlib.suppress(ValueError, OSError):
            now = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(self._next if now == self._theirs.fileno() else now)
