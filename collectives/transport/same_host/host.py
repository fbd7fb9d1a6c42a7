"""The ways of one rank to and from the other ranks of its host."""

from __future__ import annotations

import math
import os
import select
import socket
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from .door import Door, same_host
from .inbox import Inbox, Receive
from .outbox import Outbox, Parcel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    import torch

    from .. import Work

__all__ = ["SameHost"]

# Looks at the socket before the thread sleeps: to be woken takes longer than an answer.
_LOOKS = 20
_LONGEST = 3600.0  # seconds of one sleep, which the system counts in 32 bits

_open: weakref.WeakSet[SameHost] = weakref.WeakSet()


class SameHost:
    """Sends and receives among ranks of one host; used by one thread, but for what says otherwise.

    Args:
        door: Of this rank, which is taken over.
        rank: In the group.
        addresses: Of the doors of all ranks; "" of those that have none.
        run: Of the greeting, known to nobody else.
    """

    def __init__(self, door: Door, rank: int, addresses: Sequence[str], run: str) -> None:
        self._door, self._rank, self._run = door, rank, run
        self._addresses = {
            peer: address
            for peer, address in enumerate(addresses)
            if peer != rank and same_host(address, addresses[rank])
        }
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._broken = False
        self._lines = [door.listener]
        # Also where nobody closes it; not at exit, when others must first hear why it ends.
        weakref.finalize(self, _close, self._lines).atexit = False
        _open.add(self)

    @property
    def peers(self) -> frozenset[int]:
        """The ranks that are reached this way."""
        return frozenset(self._addresses)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        """Send a tensor: what :class:`~collectives.transport.Transport` says.

        Raises:
            ConnectionError: The peer has ended.
        """
        return (self._outboxes.get(peer) or self._outbox(peer)).send(tensors[0], tag, self._leave)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        """Receive into a tensor: what :class:`~collectives.transport.Transport` says.

        Raises:
            ConnectionError: The peer has ended.
        """
        inbox = self._inboxes.get(peer)
        if inbox is None:
            inbox = self._inboxes[peer] = Inbox(peer)
            self._outbox(peer)  # so that its end is noticed, should it never have sent anything
        receive = Receive(tensors[0], inbox, self._receive)
        inbox.post(receive, tag)
        return receive

    def lost(self, peer: int) -> bool:
        """Whether the peer is known to have ended; from any thread."""
        outbox = self._outboxes.get(peer)
        return outbox is not None and _hung_up(outbox.line)

    def break_off(self) -> None:
        """Make every wait, here and of the peers, fail at once; from any thread."""
        self._broken = True
        for line in list(self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close what a forked child has inherited: the ways stay open for the parent."""
        _close(self._lines)

    def _outbox(self, peer: int) -> Outbox:
        """Return the way to a rank, made if there is none yet."""
        outbox = self._outboxes.get(peer)
        if outbox is None:
            try:
                line, arena = Door.visit(self._addresses[peer], self._rank, self._run)
            except ConnectionError as error:
                raise ConnectionError(f"Connection closed by peer (rank {peer})") from error
            except OSError as error:
                raise OSError(
                    f"no way to rank {peer} of this host ({error}); COLLECTIVES_SAME_HOST=off on"
                    " all ranks sends everything over gloo"
                ) from error
            self._lines.append(line)
            outbox = self._outboxes[peer] = Outbox(peer, line, arena)
            if self._broken:
                self.break_off()
        return outbox

    def _receive(self, receive: Receive, timeout: timedelta) -> None:
        """Return when a message has come."""
        inbox = receive.inbox
        if inbox.line is not None:
            for _ in range(_LOOKS):
                if inbox.read() and receive.done:
                    return
        self._wait(receive, inbox.peer, timeout)

    def _leave(self, parcel: Parcel, timeout: timedelta) -> None:
        """Return when a message has left."""
        self._wait(parcel, parcel.outbox.peer, timeout)

    def _wait(self, work: Receive | Parcel, peer: int, timeout: timedelta) -> None:
        end = time.monotonic() + timeout.total_seconds()
        while True:
            for outbox in self._outboxes.values():
                outbox.push()
            if work.done:
                return
            if self._is_lost(work):
                raise ConnectionError(f"Connection closed by peer (rank {peer})")
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Timed out waiting for rank {peer}")
            self._sleep(work, left)
            self._admit()
            for box in self._inboxes.values():
                while box.awaited and box.read():
                    pass

    def _sleep(self, work: Receive | Parcel, seconds: float) -> None:
        """Return when something may have happened, or after so many seconds."""
        poll = select.poll()
        poll.register(self._door.listener, select.POLLIN)
        for inbox in self._inboxes.values():
            if inbox.line is not None and inbox.awaited:
                poll.register(inbox.line, select.POLLIN)
        for outbox in self._outboxes.values():
            if outbox.awaits:
                poll.register(outbox.line, outbox.awaits)
        if isinstance(work, Receive) and work.inbox.line is None:
            outbox = self._outboxes[work.inbox.peer]
            poll.register(outbox.line, outbox.awaits)  # whose end is noticed in any case
        poll.poll(math.ceil(1000 * min(seconds, _LONGEST)))

    def _admit(self) -> None:
        """Let in the ranks that have come to the door."""
        while (visitor := self._door.admit(self._run)) is not None:
            peer, line, arena = visitor
            self._lines.append(line)
            self._inboxes.setdefault(peer, Inbox(peer)).connect(line, arena)
            if self._broken:
                self.break_off()

    def _is_lost(self, work: Receive | Parcel) -> bool:
        """Whether the peer of a message has ended, so that it will not be moved."""
        if isinstance(work, Parcel):
            return work.outbox.lost
        inbox = work.inbox
        if inbox.line is None and _hung_up(self._outboxes[inbox.peer].line):
            self._admit()  # it may have sent, and ended
            return inbox.line is None
        return inbox.lost


def _hung_up(line: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(line, 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True  # closed here


def _close(lines: list[socket.socket]) -> None:
    for line in lines:
        line.close()


def _forget_parent() -> None:
    for host in list(_open):
        host.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
