"""A user's file with ``pytorch_lightning``: checked by mypy --strict, never run."""

from __future__ import annotations

import lightning_fabric
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from typing_extensions import assert_type

from adapters.fabric import FabricAdapter
from adapters.lightning import LightningAdapter, exchange_callback
from collectives import Exchange, Ring


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.exchange = Exchange(Ring, LightningAdapter(self))

    def training_step(self, batch: Tensor) -> Tensor:
        mine: Tensor = self.layer(batch)
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main(fabric: lightning_fabric.Fabric) -> None:
    module = Module()
    callback = exchange_callback(pl.Callback, module.exchange)
    assert_type(callback, pl.Callback)
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback])
    trainer.fit(module)
    Exchange(Ring, LightningAdapter(trainer))
    Exchange(Ring, FabricAdapter(fabric))
