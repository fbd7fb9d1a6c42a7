"""What the same test needs on the CPU and on one GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from collectives import Context
from collectives.transport.group import GroupTransport

__all__ = ["BatchedAdapter", "has_gpu", "local_device", "wait_for"]


def has_gpu() -> bool:
    """Whether CUDA and NCCL are there; asked without starting CUDA, since ranks are forked."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    return torch.cuda.is_available() and dist.is_nccl_available()


def local_device(kind: str) -> torch.device:
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, 0)


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that it was told."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


@dataclass
class BatchedAdapter:
    """Exchanges over the default group as over NCCL: in batches, without tags."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def transport(self) -> GroupTransport:
        assert dist.group.WORLD is not None
        return GroupTransport(dist.group.WORLD, self.device, batched=True)

    def context(self) -> Context:
        group = dist.group.WORLD
        assert group is not None
        return Context(
            group.rank(), group.size(), group.rank(), 0, self.device, group, "test",
            transport=self.transport,
        )  # fmt: skip
