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
        wait: Returns when it is over.
    """

    __slots__ = ("_wait", "address", "came", "done", "inbox", "size", "tensor")

    def __init__(
        self, tensor: torch.Tensor, inbox: Inbox, wait: Callable[[Receive, timedelta], None]
    ) -> None:
        self.tensor, self.inbox, self._wait = tensor, inbox, wait
        self.address, self.size = tensor.data_ptr(), tensor.nbytes
        self.came, self.done = 0, False

    @property
    def peer(self) -> int:
        """From whom it comes."""
        return self.inbox.peer

    @property
    def over(self) -> bool:
        """Whether it is there, and its sender has been told that it was asked for.

        The sender waits for that, and this rank may be in no other exchange for long.
        """
        return self.done and (self.inbox.lost or not self.inbox.outbox.behind)

    def wait(self, timeout: timedelta) -> None:
        """Return when it is over; see :class:`~collectives.transport.Work`."""
        if self.inbox.outbox.posted:  # it may have come before it was asked for
            self.inbox.outbox.push()
        if not self.over:
            self._wait(self, timeout)


class _Early:
    """A message, or a part of one, that nobody has asked for.

    Args:
        size: Bytes of all of it.
    """

    __slots__ = ("address", "came", "done", "held", "kept", "size")

    def __init__(self, size: int) -> None:
        self.size, self.came, self.done = size, 0, False
        self.kept = bytearray(size if size <= SHORT else 0)  # a short one
        self.address = address_of(self.kept) if self.kept else 0
        self.held: list[int] = []  # slots of a long one


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
        self._early: dict[int, list[_Early]] = {}
        self._stage = bytearray(_STAGE)
        self._view, self._stage_at = memoryview(self._stage), address_of(self._stage)
        self._filled = 0
        self._short: Receive | _Early | None = None  # whose payload has come in part
        self._long: Receive | _Early | None = None  # of which more parts will come
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
        self._check(receive, message.size)
        if message.kept:
            ctypes.memmove(receive.address, message.address, message.came)
        for position, slot in enumerate(message.held):
            self._unload(receive, slot, position * SLOT)
        self._give_back()
        receive.came, receive.done = message.came, message.done
        if self._short is message:
            self._short = receive
        elif self._long is message:
            self._long = receive

    def read(self) -> bool:
        """Take in what has come; whether anything has."""
        line, target = self.line, self._short
        if line is None or self.lost:
            return False
        try:
            if target is None:
                came = line.recv_into(self._view[self._filled :])
            else:
                rest = memory_of(target.address + target.came, target.size - target.came)
                came = line.recv_into(rest)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            came = 0
        if not came:
            self.lost = True
        elif target is None:
            self._filled += came
            self._parse()
        else:
            target.came += came
            if target.came == target.size:
                target.done, self._short = True, None
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
        target = self._target(tag, size)
        here = min(size, self._filled - start)
        ctypes.memmove(target.address, self._stage_at + start, here)
        target.came, target.done = here, here == size
        if here < size:
            self._short = target
        return here

    def _part(self, tag: int, size: int, slot: int) -> None:
        """Take in a slot of a long message."""
        target = self._long or self._target(tag, size)
        position, target.came = target.came, min(target.came + SLOT, size)
        if isinstance(target, Receive):
            self._unload(target, slot, position)
        else:
            target.held.append(slot)
        target.done = target.came == size
        self._long = None if target.done else target

    def _unload(self, receive: Receive, slot: int, position: int) -> None:
        """Copy what a slot holds, which can then be given back."""
        assert self._arena is not None  # it came from there
        part = min(SLOT, receive.size - position)
        ctypes.memmove(receive.address + position, self._arena.address(slot), part)
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

    def _target(self, tag: int, size: int) -> Receive | _Early:
        """Return where a message that begins to come belongs."""
        posted = self._posted.get(tag)
        if posted is None:
            early = _Early(size)
            self._early.setdefault(tag, []).append(early)
            return early
        receive = posted.pop(0)
        if not posted:
            del self._posted[tag]
        self._check(receive, size)
        return receive

    def _check(self, receive: Receive, size: int) -> None:
        if size != receive.size:
            raise RuntimeError(
                f"expected {receive.size} bytes from rank {self.peer}, got {size}; {SAME_VERSION}"
            )
