"""What one rank sends to another of its host."""

from __future__ import annotations

import ctypes
import select
import socket
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from .arena import SLOT, SLOTS, Arena
from .frame import HEAD, INLINE, SHORT, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .. import Work

__all__ = ["Outbox", "Parcel"]


class _Sent:
    """A message that needs nothing more of its sender."""

    def wait(self, timeout: timedelta) -> None:
        """Return at once."""


_SENT = _Sent()


class Parcel:
    """A message of which a part has not left yet.

    Args:
        tensor: Whose memory it is; held until it has left.
        tag: Of the message.
        outbox: Through which it leaves.
        wait: Returns when it has left.
    """

    __slots__ = ("_wait", "done", "left", "outbox", "size", "tag", "tensor")

    def __init__(
        self,
        tensor: torch.Tensor,
        tag: int,
        outbox: Outbox,
        wait: Callable[[Parcel, timedelta], None],
    ) -> None:
        self.tensor, self.tag, self.outbox, self._wait = tensor, tag, outbox, wait
        self.size, self.done = tensor.nbytes, False
        self.left = -1  # bytes that have been framed; an empty message has a frame as well

    def wait(self, timeout: timedelta) -> None:
        """Return when all of it has left; see :class:`~collectives.transport.Work`."""
        if not self.done:
            self._wait(self, timeout)


class Outbox:
    """The way to one rank.

    Args:
        peer: Its rank in the group.
        line: A connected socket, which does not block.
        arena: Shared with the receiver.
    """

    def __init__(self, peer: int, line: socket.socket, arena: Arena) -> None:
        self.peer, self.line, self._arena = peer, line, arena
        self.lost = False  # the receiver has ended
        # The one that came back last is taken first: it still is in the cache.
        self._free = bytearray(reversed(range(SLOTS)))
        self._parcels: deque[Parcel] = deque()
        self._frame = memoryview(b"")  # of which the socket has not taken all

    def send(
        self, tensor: torch.Tensor, tag: int, wait: Callable[[Parcel, timedelta], None]
    ) -> Work:
        """Send a contiguous tensor, or queue what finds no room.

        Args:
            tensor: Stays untouched until it has left.
            tag: Of the message.
            wait: Returns when a parcel has left.

        Raises:
            ConnectionError: The receiver has ended.
        """
        size = tensor.nbytes
        if size <= SHORT and not self._parcels:
            head = HEAD.pack(INLINE, tag, size)
            payload = (ctypes.c_char * size).from_address(tensor.data_ptr() or 1)
            try:
                sent = self.line.sendmsg((head, payload), (), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                sent = 0
            if sent == HEAD.size + size:
                return _SENT
            self._frame = memoryview(b"".join((head, payload)))[sent:]
            parcel = Parcel(tensor, tag, self, wait)
            parcel.left = size
            self._parcels.append(parcel)
            return parcel
        parcel = Parcel(tensor, tag, self, wait)
        self._parcels.append(parcel)
        self.push()
        return _SENT if parcel.done else parcel

    @property
    def awaits(self) -> int:
        """What this rank must hear of the socket before it can move on; 0 where nothing is left."""
        if self.lost or not self._parcels:
            return 0
        return select.POLLOUT if self._frame else select.POLLIN

    def push(self) -> None:
        """Move on what is queued, as far as there is room; see :attr:`lost`."""
        try:
            self._push()
        except ConnectionError:
            self.lost = True

    def _push(self) -> None:
        while self._parcels and self._flush():
            parcel = self._parcels[0]
            if parcel.left == parcel.size:
                parcel.done = True
                self._parcels.popleft()
            elif not self._load(parcel):
                return

    def _flush(self) -> bool:
        """Put the frame that was begun into the socket; whether all of it is there."""
        while self._frame:
            try:
                sent = self.line.send(self._frame, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self._frame = self._frame[sent:]
        return True

    def _load(self, parcel: Parcel) -> bool:
        """Begin the next frame of a message; False if there is no slot for it."""
        begun = max(parcel.left, 0)
        address, size = parcel.tensor.data_ptr() + begun, min(parcel.size - begun, SLOT)
        if parcel.size <= SHORT:
            head = HEAD.pack(INLINE, parcel.tag, size)
            self._frame = memoryview(b"".join((head, memory_of(address, size))))
        else:
            self._collect()
            if not self._free:
                return False
            slot = self._free.pop()
            ctypes.memmove(self._arena.address(slot), address, size)
            self._frame = memoryview(HEAD.pack(slot, parcel.tag, parcel.size))
        parcel.left = begun + size
        return True

    def _collect(self) -> None:
        """Take back the slots that the receiver has read."""
        try:
            slots = self.line.recv(SLOTS)
        except BlockingIOError:
            return
        if not slots:
            raise ConnectionError(f"Connection closed by peer (rank {self.peer})")
        self._free += slots
