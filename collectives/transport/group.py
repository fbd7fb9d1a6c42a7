"""A process group of torch: gloo directly, every backend that coalesces in batches.

On gloo the backend's own ``send`` and ``recv`` are called (1.6 to 2.3 times less main-thread time
than ``P2POp`` up to 256 KiB); NCCL and others that ignore tags want all messages of an exchange
in one batch, whose order per pair of ranks is right without tags (see ``collectives.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast

import torch
import torch.distributed as dist

from .. import runtime
from . import Post, Work

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["GroupTransport", "failure_kind", "post_function"]

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
        self.send = post_function(backend, "send")
        self.recv = post_function(backend, "recv")
        if batched is None:
            batched = bool(getattr(backend, "supports_coalescing", device.type == "cuda"))
        self.batch = self._batch if batched else None

    def _batch(self, posts: Sequence[Post]) -> Sequence[Work]:
        calls = {"send": dist.isend, "recv": dist.irecv}
        # By global rank: `group_peer=` came with torch 2.6. Translated here and nowhere else.
        ops = [
            dist.P2POp(
                calls[post.kind],
                post.tensor,
                dist.get_global_rank(self.group, post.peer),
                group=self.group,
                tag=post.tag,
            )
            for post in posts
        ]
        # NCCL's Work.wait(timeout) would block the host; its own watchdog keeps the deadline.
        return [_StreamWork(work) for work in dist.batch_isend_irecv(ops)] if ops else ()

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


def post_function(backend: object, name: Literal["send", "recv"]) -> _PostFunction:
    """Return a method of a backend that torch's stubs do not list."""
    return cast("_PostFunction", getattr(backend, name))


class _StreamWork:
    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout: timedelta) -> object:
        del timeout
        return self._work.wait()


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
