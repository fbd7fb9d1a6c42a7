"""Stand-ins for Trainer, Fabric and LightningModule, and a process group of any rank and size.

``fake_world`` uses torch's own fake backend, which delivers nothing: discovery of rank 3 of 8
needs no other seven processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["FakeFabric", "FakeModule", "FakeStrategy", "FakeTrainer", "fake_world"]


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[dist.ProcessGroup]:
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    sys.excepthook = hook  # torch wraps it once more in every init_process_group
    group = dist.group.WORLD
    assert group is not None
    try:
        yield group
    finally:
        dist.destroy_process_group()


@dataclass
class FakeStrategy:
    root_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    device_mesh: object = None


@dataclass
class FakeFitLoop:
    batch_idx: int = -1


@dataclass
class FakeTrainer:
    global_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node_rank: int = 0
    strategy: FakeStrategy = field(default_factory=FakeStrategy)
    current_epoch: int = 0
    global_step: int = 0
    fit_loop: FakeFitLoop = field(default_factory=FakeFitLoop)


@dataclass
class FakeFabric:
    global_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node_rank: int = 0
    strategy: FakeStrategy = field(default_factory=FakeStrategy)

    @property
    def device(self) -> torch.device:
        return self.strategy.root_device


class FakeModule:
    """Refuses ``trainer`` while it has none, as a LightningModule does."""

    def __init__(self, trainer: FakeTrainer | None = None, fabric: FakeFabric | None = None):
        self._trainer = trainer
        self.fabric = fabric
        self.device = torch.device("cpu")

    @property
    def trainer(self) -> FakeTrainer:
        if self._trainer is None:
            raise RuntimeError("FakeModule is not attached to a Trainer")
        return self._trainer
