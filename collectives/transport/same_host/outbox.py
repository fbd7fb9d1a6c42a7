"""What one rank sends to another of its host."""

from __future__ import annotations

import ctypes
import select
import socket
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from .arena import AT_ONCE, SLOT, SLOTS, Arena
from .frame import HEAD, INLINE, POSTED, SHORT, memory_of

if TYPE_CHECKING:
    import torch

    from .host import SameHost

__all__ = ["Outbox", "Parcel"]


class Parcel:
    """A message to another rank.

    Args:
        tensor: Whose memory it is.
        tag: Of the message.
        outbox: Through which it leaves.
        host: Of this rank.
    """

    __slots__ = ("address", "framed", "gone", "host", "met", "outbox", "size", "tag", "tensor")

    def __init__(self, tensor: torch.Tensor, tag: int, outbox: Outbox, host: SameHost) -> None:
        self.tensor, self.tag, self.outbox, self.host = tensor, tag, outbox, host
        self.size, self.address = tensor.nbytes, tensor.data_ptr()
        self.framed = -1  # bytes that were; an empty message has a frame as well
        self.gone = self.met = False

    @property
    def done(self) -> bool:
        """Whether all of it has left, and the receiver has asked for it."""
        return self.gone and self.met

    over = done

    def hold(self) -> None:
        """Keep the memory, whatever the caller lets the tensor be until all of it has left."""
        self.tensor = self.tensor.detach()

    def memory(self) -> int:
        """Return where what has not left lies.

        Raises:
            RuntimeError: The caller has resized it.
        """
        if self.tensor.data_ptr() != self.address:
            raise RuntimeError(
                f"a tensor on its way to rank {self.peer} has lost its storage (resized?); leave"
                " what is being sent alone until wait()"
            )
        return self.address

    @property
    def peer(self) -> int:
        """To whom it goes."""
        return self.outbox.peer

    def wait(self, timeout: timedelta) -> None:
        """Return when it is done; see :class:`~collectives.transport.Work`."""
        if not (self.gone and self.met):
            self.host.wait_for(self, timeout)


class Outbox:
    """The way to one rank.

    Args:
        peer: Its rank in the group.
        line: A connected socket, which does not block.
        arena: Shared with the receiver.
    """

    def __init__(self, peer: int, line: socket.socket, arena: Arena) -> None:
        self.peer, self.line = peer, line
        self._arena: Arena | None = arena
        self.lost = False  # the receiver has ended
        # The one that came back last is taken first: it still is in the cache.
        self._free = bytearray(reversed(range(SLOTS)))
        self._parcels: deque[Parcel] = deque()  # that have not left
        self._unmet: dict[int, list[Parcel]] = {}  # that nobody has asked for
        self._asked: dict[int, int] = {}  # receives there for which nothing was sent, by tag
        self._frame = memoryview(b"")  # of which the socket has not taken all
        self.posted = b""  # heads that the receiver has not been told

    def send(self, parcel: Parcel) -> Parcel:
        """Send a message, or queue what finds no room.

        Raises:
            ConnectionError: The receiver has ended.
        """
        tag, size = parcel.tag, parcel.size
        if self._asked and tag in self._asked:
            self._take_ask(tag)
            parcel.met = True
        else:
            self._unmet.setdefault(tag, []).append(parcel)
        if size > SHORT or self._parcels or self._frame:
            self._parcels.append(parcel)
            self.push()
            if not parcel.gone:
                parcel.hold()
            return parcel
        head = self.posted + HEAD.pack(INLINE, tag, size)
        payload = (ctypes.c_char * size).from_address(parcel.address or 1)
        self.posted = b""
        try:
            sent = self.line.sendmsg((head, payload), (), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        if sent == len(head) + size:
            parcel.gone = True
            return parcel
        self._frame = memoryview(b"".join((head, payload)))[sent:]
        parcel.framed = size
        self._parcels.append(parcel)
        return parcel

    def close(self) -> None:
        """Let go of the memory, and of all that has not left."""
        self.lost, self._arena = True, None
        self._parcels.clear()
        self._frame, self.posted = memoryview(b""), b""

    def tell(self, tag: int) -> None:
        """Note that a receive was posted; the receiver is told with the next message, or push."""
        self.posted += HEAD.pack(POSTED, tag, 0)

    def meet(self, tag: int) -> None:
        """Take note that the receiver has posted a receive."""
        unmet = self._unmet.get(tag)
        if unmet is None:
            self._asked[tag] = self._asked.get(tag, 0) + 1
            return
        unmet.pop(0).met = True
        if not unmet:
            del self._unmet[tag]

    def _take_ask(self, tag: int) -> None:
        self._asked[tag] -= 1
        if not self._asked[tag]:
            del self._asked[tag]

    @property
    def unmet(self) -> bool:
        """Whether something was sent that the receiver has not asked for."""
        return bool(self._unmet)

    @property
    def behind(self) -> bool:
        """Whether the receiver has not been told all that it could be, for want of room."""
        return not self.lost and bool(self.posted or self._frame)

    @property
    def awaits(self) -> int:
        """What this rank must hear of the socket before it can move on; 0 where nothing is left."""
        if self.lost or not (self._parcels or self._frame or self.posted):
            return 0
        return select.POLLOUT if self._frame else select.POLLIN

    def push(self) -> None:
        """Move on what is queued, as far as there is room; see :attr:`lost`."""
        try:
            self._push()
        except ConnectionError:
            self.lost = True

    def _push(self) -> None:
        while self._flush():
            parcel = self._parcels[0] if self._parcels else None
            if parcel is not None and parcel.framed == parcel.size:
                parcel.gone = True
                self._parcels.popleft()
                if parcel.size > AT_ONCE * SLOT:
                    parcel.host.take_in()
            elif self.posted:  # before the next part: whoever waits for it may have slots of ours
                self._frame, self.posted = memoryview(self.posted), b""
            elif parcel is None or not self._load(parcel):
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
        if parcel.size > SHORT:
            return self._fill(parcel)
        payload = memory_of(parcel.memory(), parcel.size)
        self._frame = memoryview(b"".join((HEAD.pack(INLINE, parcel.tag, parcel.size), payload)))
        parcel.framed = parcel.size
        return True

    def _fill(self, parcel: Parcel) -> bool:
        """Copy the next parts of a message into slots; False if there is none."""
        if parcel.framed > 0:
            parcel.host.take_in()  # what has come meanwhile is still in the cache
        self._collect()
        assert self._arena is not None  # nothing leaves once it is closed
        begun, heads, free = max(parcel.framed, 0), b"", self._free
        address, tag, size = parcel.memory(), parcel.tag, parcel.size
        end = min(size, begun + AT_ONCE * SLOT)
        while free and begun < end:
            slot, part = free.pop(), min(end - begun, SLOT)
            ctypes.memmove(self._arena.address(slot), address + begun, part)
            heads += HEAD.pack(slot, tag, size)
            begun += part
        self._frame, parcel.framed = memoryview(heads), begun
        return bool(heads)

    def _collect(self) -> None:
        """Take back the slots that the receiver has read."""
        try:
            slots = self.line.recv(SLOTS)
        except BlockingIOError:
            return
        if not slots:
            raise ConnectionError(f"Connection closed by peer (rank {self.peer})")
        self._free += slots
