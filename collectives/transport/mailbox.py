"""Messages in memory: which send meets which receive, and what that moves.

No threads here, only the rule of matching: by (source, destination, tag), and within these by
order. A rank's end of a message lies here until its other end is posted.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from ..signature import Signature

__all__ = ["Kind", "Mailbox", "Message", "Traffic"]

Kind = Literal["send", "recv"]


class Traffic(NamedTuple):
    """What one rank sent to another.

    Args:
        messages: That arrived.
        bytes: Of these messages.
    """

    messages: int
    bytes: int


@dataclass(slots=True, eq=False)
class Message:
    """One end of a message.

    Args:
        kind: Which end.
        rank: Whose end.
        peer: Who has the other end.
        tag: None: matches by order alone.
        tensor: Read, or written to, when the other end is there.
        signature: Of the exchange that it belongs to.
        done: Whether it has been moved.
        payload: What was read early, where a send does not wait for its receive.
    """

    kind: Kind
    rank: int
    peer: int
    tag: int | None
    tensor: torch.Tensor
    signature: Signature | None
    done: bool = False
    payload: bytes | None = None

    @property
    def edge(self) -> tuple[int, int]:
        """Source and destination."""
        return (self.rank, self.peer) if self.kind == "send" else (self.peer, self.rank)

    def check(self, size: int) -> None:
        """Refuse what no message between ``size`` ranks can be.

        Raises:
            ArgumentError: Another peer, or a tensor whose bytes do not lie in a row in memory.
        """
        here = f"(rank {self.rank} of {size})"
        if not 0 <= self.peer < size:
            raise ArgumentError(
                f"{self.kind}: no such peer: expected a rank below {size}, got {self.peer} {here}"
            )
        if self.peer == self.rank:
            raise ArgumentError(
                f"{self.kind}: a message to oneself: expected another rank, got {self.peer} {here};"
                " copy the tensor instead"
            )
        if self.tensor.device.type != "cpu" or not self.tensor.is_contiguous():
            raise ArgumentError(
                f"{self.kind}: expected a contiguous tensor on the CPU, got shape "
                f"{tuple(self.tensor.shape)} with strides {self.tensor.stride()} on "
                f"{self.tensor.device} {here}"
            )

    def read(self) -> None:
        """Copy the tensor now: what happens to it afterwards is not sent."""
        self.payload = ctypes.string_at(self.tensor.data_ptr(), self.tensor.nbytes)

    def fits(self, other: Message) -> bool:
        """Whether the two ends can be one message.

        Without tags nothing but this keeps the messages of two exchanges apart.
        """
        mine, theirs = self.tensor, other.tensor
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        return self.tag is not None or _same_exchange(self.signature, other.signature)

    @property
    def what(self) -> str:
        """Which end of what, in words."""
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        tag = "" if self.tag is None else f" with tag {self.tag}"
        return f"{self.kind} of {dtype}{list(self.tensor.shape)}{tag}"

    def __str__(self) -> str:
        """Return one line for error texts."""
        way = "to" if self.kind == "send" else "from"
        exchange = f" in {self.signature}" if self.signature else ""
        return f"rank {self.rank}'s {self.what} {way} rank {self.peer}{exchange}"


def _same_exchange(one: Signature | None, other: Signature | None) -> bool:
    """Whether both ends say so, or one says nothing; each may move other tensors besides."""
    if one is None or other is None:
        return True
    return one is other or set(one.differing(other)) <= {"tensors"}


class Mailbox:
    """Every message of a world of ranks."""

    def __init__(self) -> None:
        self._posted: dict[tuple[tuple[int, int], int | None], deque[Message]] = {}
        self._traffic: dict[tuple[int, int], Traffic] = {}

    @property
    def traffic(self) -> Mapping[tuple[int, int], Traffic]:
        """What arrived so far, by (source, destination)."""
        return dict(self._traffic)

    def left_over(self) -> Iterator[Message]:
        """Yield the ends whose other end has not been posted."""
        for queue in self._posted.values():
            yield from queue

    def match(self, message: Message) -> Message | None:
        """Return the other end of ``message``; None: keep it until that is posted."""
        key = (message.edge, message.tag)
        queue = self._posted.setdefault(key, deque())
        if not queue or queue[0].kind == message.kind:
            queue.append(message)
            return None
        other = queue.popleft()
        if not queue:
            del self._posted[key]
        return other

    def move(self, message: Message, other: Message) -> None:
        """Copy the bytes from one end to the other, as a wire does.

        Knows nothing of autograd or of the modes of the thread that happens to do it.
        """
        send, recv = (message, other) if message.kind == "send" else (other, message)
        size = recv.tensor.nbytes
        if size:
            source = send.tensor.data_ptr() if send.payload is None else send.payload
            ctypes.memmove(recv.tensor.data_ptr(), source, size)
        messages, moved = self._traffic.get(send.edge, Traffic(0, 0))
        self._traffic[send.edge] = Traffic(messages + 1, moved + size)
        send.done = recv.done = True
