"""A LightningModule that can be pickled: its class is found by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter

__all__ = ["SavedModule", "quiet_trainer"]

Report = Callable[[Path, Adapter], None]
Rows = DataLoader[tuple[torch.Tensor, ...]]


class SavedModule(lightning.LightningModule):
    """Trains over a ring; tells ``report`` at the end of training."""

    def __init__(self, folder: Path | None = None, report: Report | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.adapter = LightningAdapter(self)
        self.exchange = Exchange(Ring, self.adapter)
        self.folder, self.report = folder, report

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        mine = self.layer(batch[0])
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.exchange.shift(batch[0])

    def on_train_end(self) -> None:
        if self.folder is not None and self.report is not None:
            self.report(self.folder, self.adapter)

    def train_dataloader(self) -> Rows:
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)

    val_dataloader = train_dataloader

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def quiet_trainer(devices: int, strategy: str, **options: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
