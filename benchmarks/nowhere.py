"""A transport that moves nothing: what is left is Python, without the machine in between.

Between real messages the same code takes about twice as long, because the processor's caches then
hold the kernel's network code and other processes. So both figures are shown: this one is steady
enough to see a change in the code, the other one is what users pay.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from collectives import Context

__all__ = ["Nowhere", "NowhereAdapter"]


class _Done:
    def wait(self, timeout: timedelta) -> None:
        """Return at once."""
        del timeout


_DONE = _Done()


@dataclass(frozen=True)
class Nowhere:
    """Implements ``collectives.transport.Transport``.

    Args:
        rank: Of the caller.
        size: Of the group that it pretends to be.
    """

    rank: int
    size: int
    batch: None = None
    announce: None = None
    label: str = "nowhere"

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> _Done:
        """Send nothing."""
        del tensors, peer, tag
        return _DONE

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> _Done:
        """Receive nothing."""
        del tensors, peer, tag
        return _DONE

    def alive(self) -> bool:
        """Whether the group exists: always."""
        return True

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(frozen=True)
class NowhereAdapter:
    """Finds ranks that are not there."""

    transport: Nowhere

    def context(self) -> Context:
        """Return where this process would stand."""
        rank, cpu = self.transport.rank, torch.device("cpu")
        return Context(
            rank=rank,
            size=self.transport.size,
            local_rank=rank,
            node_rank=0,
            device=cpu,
            group=None,
            source="benchmark",
            transport=self.transport,
        )
