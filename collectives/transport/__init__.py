"""Moving bytes: the small part of a process group that the engine uses.

``group`` is a process group, ``same_host`` the way past it among ranks of one host, ``local`` a
single process, ``simulator`` many ranks in one process.
Peers are ranks *of the group*, never global ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from ..signature import Signature

__all__ = ["Post", "Transport", "Work"]


class Work(Protocol):
    """A message on its way."""

    def wait(self, timeout: timedelta) -> object:
        """Return when the message has been moved; raise at the timeout. Called once."""
        ...


class Post(NamedTuple):
    """One message of a batch."""

    kind: Literal["send", "recv"]
    tensor: torch.Tensor
    peer: int
    tag: int


class Transport(Protocol):
    """What the engine needs.

    A tensor given to ``send`` or ``recv`` is contiguous and stays untouched until its Work has
    been waited for. Messages between two ranks match by tag, and within one tag by order; where
    ``batch`` is not ``None`` tags are ignored and the engine posts everything through it, in an
    order that is right without them.
    """

    @property
    def rank(self) -> int:
        """Rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    @property
    def send(self) -> Callable[[list[torch.Tensor], int, int], Work]:
        """``send([tensor], peer, tag)``: start sending."""
        ...

    @property
    def recv(self) -> Callable[[list[torch.Tensor], int, int], Work]:
        """``recv([tensor], peer, tag)``: start receiving into ``tensor``."""
        ...

    @property
    def batch(self) -> Callable[[Sequence[Post]], Sequence[Work]] | None:
        """Post many messages at once, where the backend wants that."""
        ...

    @property
    def announce(self) -> Callable[[Signature | None], None] | None:
        """Told the signature of each exchange before its messages are posted; None: not wanted."""
        ...

    @property
    def label(self) -> str:
        """Tells the group from others of the job, in a flight record."""
        ...

    def alive(self) -> bool:
        """Whether the group still exists (cheap: asked before each exchange)."""
        ...

    def close(self) -> None:
        """Let go of what this transport made itself; never of the group. Idempotent."""
        ...
