"""The ways of one rank to and from the other ranks of its host."""

from __future__ import annotations

import atexit
import math
import os
import select
import socket
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from .door import Door, Visitor, same_host
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
        self._inboxes: dict[int, Inbox] = {}
        self._broken = False
        self._lines = door.lines
        self._thread = 0  # the one that exchanged last
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
        outbox = (self._inboxes.get(peer) or self._reach(peer)).outbox
        return outbox.send(Parcel(tensors[0], tag, outbox, self))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        """Receive into a tensor: what :class:`~collectives.transport.Transport` says.

        Raises:
            ConnectionError: The peer has ended.
        """
        inbox = self._inboxes.get(peer) or self._reach(peer)
        receive = Receive(tensors[0], inbox, self._receive)
        inbox.post(receive, tag)
        return receive

    def flush(self) -> None:
        """Tell the peers what was posted, should this rank not wait for it at once."""
        self._thread = threading.get_ident()
        for inbox in self._inboxes.values():
            if inbox.outbox.awaits:
                inbox.outbox.push()

    def lost(self, peer: int) -> bool:
        """Whether the peer is known to have ended; from any thread."""
        inbox = self._inboxes.get(peer)
        return inbox is not None and _hung_up(inbox.outbox.line)

    def break_off(self) -> None:
        """Make every wait, here and of the peers, fail at once; from any thread."""
        self._broken = True
        for line in list(self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all ways, of this process, and give their memory back; no wait goes on."""
        self._broken = True
        _close(self._lines)
        while self._inboxes:
            self._inboxes.popitem()[1].close()

    def _reach(self, peer: int) -> Inbox:
        """Open the way to a rank; return the way from it, which that rank may have to open yet."""
        try:
            line, arena = Door.visit(self._addresses[peer], self._rank, self._run)
        except ConnectionError as error:
            raise ConnectionError(f"Connection closed by peer (rank {peer})") from error
        except OSError as error:
            raise _no_way(f"to rank {peer}", error) from error
        self._lines.append(line)
        inbox = self._inboxes[peer] = Inbox(peer, Outbox(peer, line, arena))
        if self._broken:
            self.break_off()
        return inbox

    def _receive(self, receive: Receive, timeout: timedelta) -> None:
        """Return when a message has come."""
        inbox = receive.inbox
        if inbox.line is not None:
            for _ in range(_LOOKS):
                if inbox.read() and receive.over:
                    return
        self.wait_for(receive, timeout)

    def take_in(self) -> None:
        """Read what has come, from whomever."""
        for way in self._inboxes.values():
            way.read()

    def wait_for(self, work: Receive | Parcel, timeout: timedelta) -> None:
        """Return when a message has been moved, and its other end knows what it waits for."""
        end = time.monotonic() + timeout.total_seconds()
        inbox = self._inboxes.get(work.peer)
        if inbox is None:
            raise ConnectionError(f"Connection closed by peer (rank {work.peer}) or here")
        hosts = [self, *self._others()]
        while True:
            # The sockets of one that was broken off are ready all the time, and say nothing.
            hosts = [host for host in hosts if host is self or not host._broken]
            for host in hosts:
                host._push()
            if work.over:
                return
            # What was asked for and has not left: nothing is read from there that would tell.
            cut_off = isinstance(work, Parcel) and not work.gone and inbox.outbox.lost
            if cut_off or self._is_lost(inbox):
                raise ConnectionError(f"Connection closed by peer (rank {work.peer})")
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Timed out waiting for rank {work.peer}")
            poll = select.poll()
            for host in hosts:
                host._register(poll)
            if inbox.line is None:
                poll.register(inbox.outbox.line, inbox.outbox.awaits)  # its end is always noticed
            poll.poll(math.ceil(1000 * min(left, _LONGEST)))
            for host in hosts:
                host._pull()

    def _others(self) -> list[SameHost]:
        """Return those of other groups that this thread exchanges over: a wait moves theirs too."""
        thread = threading.get_ident()
        with suppress(RuntimeError):  # another thread has opened one meanwhile: next time
            return [host for host in _open if host is not self and host._thread == thread]
        return []

    def _push(self) -> None:
        """Move on what is to leave."""
        for way in self._inboxes.values():
            way.outbox.push()

    def _pull(self) -> None:
        """Let in who has come, and take in what has."""
        self._admit()
        for way in self._inboxes.values():
            while way.awaited and way.read():
                pass

    def _register(self, poll: select.poll) -> None:
        """Let a poll return when something may have happened."""
        for line in (self._door.listener, *self._door.silent):
            poll.register(line, select.POLLIN)
        for way in self._inboxes.values():
            if way.line is not None and way.awaited:
                poll.register(way.line, select.POLLIN)
            if way.outbox.awaits:
                poll.register(way.outbox.line, way.outbox.awaits)

    def _admit(self) -> None:
        """Let in the ranks that have come to the door."""
        while (visitor := self._next_visitor()) is not None:
            peer, line, arena = visitor
            inbox = self._inboxes.get(peer)
            if peer not in self._addresses or (inbox is not None and inbox.line is not None):
                line.close()  # no rank that is reached this way, or one that has come before
                continue
            with suppress(ConnectionError):  # it has ended already
                (inbox or self._reach(peer)).connect(line, arena)
            if self._broken:
                self.break_off()

    def _next_visitor(self) -> Visitor | None:
        try:
            return self._door.admit(self._run)
        except OSError as error:
            raise _no_way("from another rank", error) from error

    def _is_lost(self, inbox: Inbox) -> bool:
        """Whether a peer has ended, so that what has not been moved will not be."""
        if inbox.line is None and _hung_up(inbox.outbox.line):
            self._admit()  # it may have sent, and ended
            return inbox.line is None
        return inbox.lost


def _no_way(where: str, error: OSError) -> OSError:
    return OSError(
        f"no way {where} of this host ({error}); where files are short, raise `ulimit -n`;"
        " COLLECTIVES_SAME_HOST=off on all ranks sends everything over gloo"
    )


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


def _close_all() -> None:
    for host in list(_open):
        host.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)  # the ways stay open for the parent
# From here, before there is a watchdog: so it runs after that one has said good-bye.
atexit.register(_close_all)
