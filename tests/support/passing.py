"""A LightningModule whose loss needs the neighbours; imported on ranks, which have Lightning."""

from __future__ import annotations

import lightning.pytorch as lightning
import torch
from torch import Tensor

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring

__all__ = ["Passing"]


class Passing(lightning.LightningModule):
    """Its loss needs what the neighbours made; it notes what arrives in each hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.rank_in_init = self.global_rank
        self.exchange = Exchange(Ring, LightningAdapter(self))
        self.arrived: dict[str, Tensor] = {}

    def note(self, hook: str) -> None:
        self.arrived[hook] = self.exchange.shift(torch.tensor([float(self.global_rank)]))

    def configure_model(self) -> None:
        self.note("configure_model")

    def setup(self, stage: str) -> None:  # noqa: ARG002 - Lightning gives it by name
        self.note("setup")

    def training_step(self, batch: list[Tensor]) -> Tensor:
        self.note("training_step")
        mine: Tensor = self.layer(batch[0])
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())

    def validation_step(self, batch: list[Tensor]) -> None:
        self.note("validation_step")
        pair = self.exchange.shift([batch[0], batch[0]])  # packed, into a buffer that is kept
        assert not pair[0].requires_grad

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)
