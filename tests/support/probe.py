"""A LightningModule of any Lightning that notes what its adapter finds, hook by hook."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, TensorDataset

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring
from collectives.context import Context
from tests.support.environment import pool_environment

if TYPE_CHECKING:
    import lightning.pytorch as lightning_pytorch

__all__ = ["NAMESPACES", "environment", "fabric", "loader", "probe_class", "ring_class", "trainer"]

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
_FABRICS = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(32.0).reshape(8, 4) / 32), batch_size=2)


def environment(namespace: str) -> object:
    path = f"{_FABRICS[namespace]}.plugins.environments.cluster_environment"
    return pool_environment(importlib.import_module(path).ClusterEnvironment)


def trainer(namespace: str, **changes: object) -> lightning_pytorch.Trainer:
    """A quiet Trainer for the ranks of the pool; with ``devices=1`` for a process by itself."""
    options: dict[str, object] = {
        "accelerator": "cpu",
        "devices": 2,
        "strategy": "ddp",
        "max_epochs": 1,
        "limit_train_batches": 2,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **changes,
    }
    if options["devices"] != 1:
        options.setdefault("plugins", [environment(namespace)])
    made = importlib.import_module(namespace).Trainer(**options)
    return cast("lightning_pytorch.Trainer", made)


def fabric(namespace: str, **changes: object) -> Any:
    options: dict[str, object] = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", **changes}
    if options["devices"] != 1:
        options.setdefault("plugins", [environment(namespace)])
    return importlib.import_module(_FABRICS[namespace]).Fabric(**options)


def probe_class(namespace: str) -> type[lightning_pytorch.LightningModule]:
    """A class made on the spot: the two namespaces have different LightningModules."""
    base: Any = importlib.import_module(namespace).LightningModule

    class Probe(base):  # type: ignore[misc] # of whichever namespace
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.adapter = LightningAdapter(self, **options)
            self.found: dict[str, Context] = {}

        def note(self, hook: str) -> None:
            context = self.adapter.context()
            self.found[hook] = context

        def setup(self, stage: str) -> None:  # noqa: ARG002 - Lightning gives it by name
            self.note("setup")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            self.note("configure_optimizers")
            return torch.optim.SGD(self.parameters(), 0.1)

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            self.note("training_step")
            loss: torch.Tensor = self.layer(batch[0]).square().mean()
            return loss

        def validation_step(self, *_: object) -> None:
            self.note("validation_step")

        def test_step(self, *_: object) -> None:
            self.note("test_step")

        def teardown(self, stage: str) -> None:  # noqa: ARG002
            self.note("teardown")

    return cast("type[lightning_pytorch.LightningModule]", Probe)


def ring_class(namespace: str) -> Any:
    """A probe whose loss needs the neighbours."""

    class Ringed(probe_class(namespace)):  # type: ignore[misc] # of whichever namespace
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(4, 1)
            self.exchange = Exchange(Ring, self.adapter, name="ring")

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            self.note("training_step")
            mine = self.layer(batch[0])
            return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    return Ringed
