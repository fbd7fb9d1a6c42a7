"""What one rank receives from another of its host."""

from __future__ import annotations

import ctypes
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

from .arena import AT_ONCE, SLOT, Arena, address_of
from .frame import HEAD, INLINE, POSTED, SAME_VERSION, SHORT, memory_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from .outbox import Outbox

__all__ = ["Inbox", "Receive"]

# Of the buffer: a few short messages in one call, and little to copy twice of a longer one.
_STAGE = 4096 + HEAD.size


class Receive:
    """A message that this rank has asked for.

    Args:
        tensor: Contiguous; its memory is written to.
        inbox: From which it comes.
        wait: Returns when it is there.
    """

    __slots__ = ("_wait", "address", "done", "inbox", "size", "tensor")

    def __init__(
        self, tensor: torch.Tensor, inbox: Inbox, wait: Callable[[Receive, timedelta], None]
    ) -> None:
        self.tensor, self.inbox, self._wait = tensor, inbox, wait
        self.address, self.size, self.done = tensor.data_ptr(), tensor.nbytes, False

    @property
    def peer(self) -> int:
        """From whom it comes."""
        return self.inbox.peer

    def wait(self, timeout: timedelta) -> None:
        """Return when it is there; see :class:`~collectives.transport.Work`."""
        if self.inbox.outbox.posted:  # it may have come before it was asked for
            self.inbox.outbox.push()
        if not self.done:
            self._wait(self, timeout)


class _Message:
    """One that has come, or of which a part has.

    Args:
        size: Bytes of all of it.
    """

    __slots__ = ("address", "came", "held", "kept", "receive", "size")

    def __init__(self, size: int) -> None:
        self.size, self.came = size, 0
        self.receive: Receive | None = None
        self.address = 0
        self.kept: bytearray | None = None  # a short one that nobody has asked for
        self.held: list[int] = []  # slots of a long one that nobody has asked for


class Inbox:
    """The way from one rank.

    Args:
        peer: Its rank in the group.
        outbox: The way to it.
    """

    def __init__(self, peer: int, outbox: Outbox) -> None:
        self.peer, self.outbox = peer, outbox
        self.line: socket.socket | None = None  # the sender has not connected yet
        self.lost = False  # the sender has ended, and all that it sent has been read
        self._arena: Arena | None = None
        self._posted: dict[int, list[Receive]] = {}
        self._early: dict[int, list[_Message]] = {}
        self._stage = bytearray(_STAGE)
        self._view, self._stage_at = memoryview(self._stage), address_of(self._stage)
        self._filled = 0
        self._short: _Message | None = None  # whose payload has come in part
        self._long: _Message | None = None  # of which more parts will come
        self._read = b""  # slots that the sender does not know to be free

    def connect(self, line: socket.socket, arena: Arena) -> None:
        """Begin to read from the sender's socket, which does not block."""
        self.line, self._arena = line, arena

    def close(self) -> None:
        """Let go of the memory, in both directions; whoever still has a message may keep this."""
        self.lost, self._arena = True, None
        self.outbox.close()

    @property
    def awaited(self) -> bool:
        """Whether something must come before this rank can move on."""
        unread = self._posted or self._short or self._long
        return not self.lost and bool(unread or self.outbox.unmet)

    def post(self, receive: Receive, tag: int) -> None:
        """Ask for the next message of a tag."""
        self.outbox.tell(tag)
        early = self._early.get(tag)
        if early is None:
            self._posted.setdefault(tag, []).append(receive)
            return
        message = early.pop(0)
        if not early:
            del self._early[tag]
        self._hand_over(message, receive)
        if message.kept is not None:
            ctypes.memmove(receive.address, address_of(message.kept), message.came)
        for position, slot in enumerate(message.held):
            self._unload(message, slot, position * SLOT)
        self._give_back()
        receive.done = message.came == message.size

    def read(self) -> bool:
        """Take in what has come; whether anything has."""
        line, message = self.line, self._short
        if line is None or self.lost:
            return False
        try:
            if message is None:
                came = line.recv_into(self._view[self._filled :])
            else:
                rest = memory_of(message.address + message.came, message.size - message.came)
                came = line.recv_into(rest)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            came = 0
        if not came:
            self.lost = True
        elif message is None:
            self._filled += came
            self._parse()
        else:
            self._add(message, came)
        return True

    def _parse(self) -> None:
        start, filled = 0, self._filled
        while filled - start >= HEAD.size:
            slot, tag, size = HEAD.unpack_from(self._stage, start)
            start += HEAD.size
            if slot == INLINE:
                start += self._begin(tag, size, start)
            elif slot == POSTED:
                self.outbox.meet(tag)
            else:
                self._part(tag, size, slot)
        self._give_back()
        self._filled = filled - start
        if self._filled and start:
            self._stage[: self._filled] = self._stage[start:filled]

    def _begin(self, tag: int, size: int, start: int) -> int:
        """Begin a short message; return how much of its payload lies in the buffer."""
        if size > SHORT:
            raise RuntimeError(
                f"rank {self.peer} sends {size} bytes where {SHORT} are the most; {SAME_VERSION}"
            )
        message = self._message(tag, size)
        if message.receive is None:
            message.kept = bytearray(size or 1)
            message.address = address_of(message.kept)
        here = min(size, self._filled - start)
        ctypes.memmove(message.address, self._stage_at + start, here)
        self._short = message
        self._add(message, here)
        return here

    def _add(self, message: _Message, came: int) -> None:
        message.came += came
        if message.came == message.size:
            self._short = None
            if message.receive is not None:
                message.receive.done = True

    def _part(self, tag: int, size: int, slot: int) -> None:
        """Take in a slot of a long message."""
        message = self._long or self._message(tag, size)
        position, message.came = message.came, min(message.came + SLOT, size)
        self._long = message if message.came < size else None
        if message.receive is None:
            message.held.append(slot)
            return
        self._unload(message, slot, position)
        message.receive.done = self._long is None

    def _unload(self, message: _Message, slot: int, position: int) -> None:
        """Copy what a slot holds, which can then be given back."""
        assert self._arena is not None  # it came from there
        part = min(SLOT, message.size - position)
        ctypes.memmove(message.address + position, self._arena.address(slot), part)
        self._read += bytes((slot,))
        if len(self._read) >= AT_ONCE:
            self._give_back()

    def _give_back(self) -> None:
        """Tell the sender which slots have been read."""
        if not self._read:
            return
        assert self.line is not None  # they came from there
        try:
            sent = self.line.send(self._read, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            sent = len(self._read)  # the sender has ended: it needs no slots
        self._read = self._read[sent:]

    def _message(self, tag: int, size: int) -> _Message:
        message, posted = _Message(size), self._posted.get(tag)
        if posted is None:
            self._early.setdefault(tag, []).append(message)
            return message
        receive = posted.pop(0)
        if not posted:
            del self._posted[tag]
        self._hand_over(message, receive)
        return message

    def _hand_over(self, message: _Message, receive: Receive) -> None:
        if message.size != receive.size:
            raise RuntimeError(
                f"expected {receive.size} bytes from rank {self.peer}, got {message.size};"
                f" {SAME_VERSION}"
            )
        message.receive, message.address = receive, receive.address
