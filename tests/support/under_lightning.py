"""Trains a recipe under Lightning's Trainer; imported on ranks, which have Lightning."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring
from tests.support.nets import loss_of
from tests.support.probe import trainer
from tests.support.recipe import Recipe, Weights, optimizers, weights_of

__all__ = ["Trained", "batches", "train", "trainer_for"]


class Trained(lightning.LightningModule):
    """Holds the recipe's net and its exchange."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.exchange = Exchange(Ring, LightningAdapter(self))
        self.net = recipe.net(self.exchange)

    def training_step(self, rows: Tensor) -> Tensor:
        return loss_of(self.net(rows), self.exchange)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        (optimizer,) = optimizers(self.net, split=False)
        return optimizer


class ByHand(Trained):
    """Steps its optimizers by itself."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.automatic_optimization = False

    def training_step(self, rows: Tensor) -> Tensor:
        loss = super().training_step(rows)
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return optimizers(self.net, split=self.recipe.split)


def batches(recipe: Recipe, rank: int) -> DataLoader[Tensor]:
    rows = [batch.to(recipe.dtype) for batch in recipe.batches(rank)]
    return DataLoader(rows, batch_size=None)  # type: ignore[arg-type]


def trainer_for(recipe: Recipe, size: int, **changes: object) -> lightning.Trainer:
    options: dict[str, object] = {
        "devices": size,
        "strategy": DDPStrategy(**recipe.ddp) if size > 1 else "auto",  # type: ignore[arg-type]
        "precision": recipe.precision,
        "accumulate_grad_batches": recipe.accumulate,
        "gradient_clip_val": recipe.clip,
        "limit_train_batches": 1.0,
        **recipe.trainer,
        **changes,
    }
    return trainer("lightning.pytorch", **options)


def train(recipe: Recipe, size: int) -> Weights:
    module = ByHand(recipe) if recipe.split else Trained(recipe)
    made = trainer_for(recipe, size)
    made.fit(module, batches(recipe, made.global_rank))
    return weights_of(module.net)
