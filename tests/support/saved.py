"""A LightningModule that can be pickled: its class is found by name."""

from __future__ import annotations

import lightning.pytorch as lightning
import torch

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring

__all__ = ["SavedModule"]


class SavedModule(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.exchange = Exchange(Ring, LightningAdapter(self))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        mine = self.layer(batch[0])
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.exchange.shift(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)
