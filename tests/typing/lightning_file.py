"""A user's file with ``lightning``: checked by mypy --strict, never run."""

from __future__ import annotations

import lightning as L  # noqa: N812 - as Lightning's own documentation writes it
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from typing_extensions import assert_type

from adapters.fabric import FabricAdapter
from adapters.lightning import LightningAdapter, exchange_callback
from collectives import Exchange, Ring
from collectives.context import Adapter, Context


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.exchange = Exchange(Ring, LightningAdapter(self))

    def training_step(self, batch: Tensor) -> Tensor:
        mine: Tensor = self.layer(batch)
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    def configure_callbacks(self) -> list[Callback]:
        return [exchange_callback(Callback, self.exchange)]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main() -> None:
    module = Module()
    callback = exchange_callback(L.Callback, module.exchange, log=False, close_on="teardown")
    assert_type(callback, L.Callback)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback])
    trainer.fit(module)
    adapter: Adapter = LightningAdapter(trainer, mesh_axis="data_parallel")
    assert_type(adapter.context(), Context)
    assert_type(LightningAdapter(module).step(), tuple[int, ...])


def loop(fabric: Fabric, other: L.Fabric) -> None:
    Exchange(Ring, FabricAdapter(fabric, alone=True))
    Exchange(Ring, FabricAdapter(other, mesh_axis="rows"))


def refused(fabric: Fabric, trainer: L.Trainer) -> None:
    LightningAdapter(fabric)  # type: ignore[arg-type]
    LightningAdapter(L.Trainer)  # type: ignore[arg-type]
    LightningAdapter(nn.Linear(1, 1))  # type: ignore[arg-type]
    LightningAdapter("trainer")  # type: ignore[arg-type]
    FabricAdapter(trainer)  # type: ignore[arg-type]
    FabricAdapter(3)  # type: ignore[arg-type]
    exchange_callback(L.Callback, trainer)  # type: ignore[arg-type]
    exchange_callback(L.Callback, Module().exchange, close_on="exit")  # type: ignore[arg-type]
