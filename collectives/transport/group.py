"""A process group of torch: gloo directly, every backend that coalesces in batches.

On gloo the backend's own ``send`` and ``recv`` are called (1.6 to 2.3 times less main-thread time
than ``P2POp`` up to 256 KiB); NCCL and others that ignore tags want all messages of an exchange
in one batch, whose order per pair of ranks is right without tags (see ``collectives.plan``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast

import torch
import torch.distributed as dist

from .. import runtime
from ..errors import ContextError
from . import Post, Work
from .rounds import in_rounds

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .same_host import SameHost

__all__ = ["GroupTransport", "failure_kind", "post_function", "wire_of"]

# By the group that exchanges were asked for over.
_OWN: weakref.WeakKeyDictionary[ProcessGroup, ProcessGroup] = weakref.WeakKeyDictionary()

_PostFunction = Callable[[list[torch.Tensor], int, int], Work]


class GroupTransport:
    """Messages over a process group.

    Args:
        group: Peers are its group ranks.
        device: Of the tensors; picks the backend of a group that has several.
        batched: Post in batches; the default asks the backend whether it coalesces.
    """

    announce = None

    def __init__(
        self, group: ProcessGroup, device: torch.device, *, batched: bool | None = None
    ) -> None:
        self.group = group
        self._groups = runtime.live_groups()
        self.rank = group.rank()
        self.size = group.size()
        # A size-1 group never sends, and some have no backend to ask.
        backend = group._get_backend(device) if self.size > 1 else group
        if self.size > 1 and device.type != "cpu" and backend.name() == "gloo":
            raise ContextError(
                f"gloo sends tensors of the CPU only: expected a process group with a backend for"
                f" {device}, got gloo (rank {self.rank} of {self.size}); make it with"
                ' init_process_group("nccl"), or exchange x.cpu() over an adapter for the CPU'
            )
        self._device, self._backend = device, backend
        self.send = post_function(backend, "send")
        self.recv = post_function(backend, "recv")
        if batched is None:
            batched = bool(getattr(backend, "supports_coalescing", device.type == "cuda"))
        self.batch = self._batch if batched else None

    def _batch(self, posts: Sequence[Post]) -> Sequence[Work]:
        group = wire_of(self.group)
        works: list[Work] = []
        for batch in in_rounds(posts, self.rank, self.size):
            # One after the other on the backend's own stream: the host need not wait in between.
            works += _post_batch(group, batch)
        return works

    def open(self, timeout: float) -> None:
        """Make the group over which batches travel, if there is none yet.

        Where messages match by order alone, those of DDP on the same communicator would come in
        between. The first batch of a group must be one of all its ranks, or NCCL waits for ever
        for those that have nothing to send: so there is one before anything else.

        Called by: every rank of the group, before its first exchange.

        Args:
            timeout: Seconds; the backend's own watchdog (NCCL's) has no other for these messages.
        """
        if self.batch is None or self.size == 1 or _OWN.get(self.group) in self._groups:
            return
        own: ProcessGroup = dist.new_group(
            dist.get_process_group_ranks(self.group),
            timeout=timedelta(seconds=timeout),
            backend=self._backend.name(),
            use_local_synchronization=self.size != dist.get_world_size(),
        )
        _OWN[self.group] = own
        here, there = (torch.zeros(1, device=self._device) for _ in range(2))
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for work in _post_batch(own, [Post("send", here, right, 0), Post("recv", there, left, 0)]):
            work.wait(timedelta(seconds=timeout))

    def shorten(self, same_host: SameHost) -> None:
        """Reach the ranks of this host past the backend, which may carry other messages."""
        near, far_send, far_recv = same_host.peers, self.send, self.recv

        def send(tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
            return (same_host.send if peer in near else far_send)(tensors, peer, tag)

        def recv(tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
            return (same_host.recv if peer in near else far_recv)(tensors, peer, tag)

        every = len(near) == self.size - 1
        self.send, self.recv = (same_host.send, same_host.recv) if every else (send, recv)

    @property
    def label(self) -> str:
        """Tells the group from others: alike on all its ranks."""
        is_default = self.group is runtime.default_group()
        return "default" if is_default else f"group-{self.group.group_name}"

    def alive(self) -> bool:
        """Whether the group has not been destroyed."""
        return self.group in self._groups

    def close(self) -> None:
        """Nothing to let go of: the group belongs to its maker."""


def wire_of(group: ProcessGroup) -> ProcessGroup:
    """Return over which group the messages of exchanges travel: this, or one of our own."""
    return _OWN.get(group, group)


def _post_batch(group: ProcessGroup, posts: Sequence[Post]) -> Sequence[Work]:
    calls = {"send": dist.isend, "recv": dist.irecv}
    # By global rank: `group_peer=` came with torch 2.6. Translated here and nowhere else.
    ops = [
        dist.P2POp(
            calls[post.kind],
            post.tensor,
            dist.get_global_rank(group, post.peer),
            group=group,
            tag=post.tag,
        )
        for post in posts
    ]
    return [_StreamWork(work) for work in dist.batch_isend_irecv(ops)]


def post_function(backend: object, name: Literal["send", "recv"]) -> _PostFunction:
    """Return a method of a backend that torch's stubs do not list."""
    return cast("_PostFunction", getattr(backend, name))


class _StreamWork:
    """A batch on the backend's own stream, which the current stream waits for.

    NCCL's ``Work.wait(timeout)`` would block the host; its own watchdog keeps the deadline.
    """

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout: timedelta) -> object:
        del timeout
        return self._work.wait()

    def arrive(self, timeout: timedelta) -> object:
        """Block the host until everything is there: it is about to read it."""
        return self._work.wait(timeout)


_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Application timeout caused pair closure",
    "Read error",
    "writev",
    "Broken pipe",
    "Pair is not connected",
)


def failure_kind(error: BaseException) -> Literal["timeout", "lost", "other"]:
    """Read the transport's text: torch raises plain RuntimeErrors for all of these."""
    text = str(error)
    if "Timed out waiting" in text or "wait timeout" in text:
        return "timeout"
    return "lost" if any(part in text for part in _LOST) else "other"
