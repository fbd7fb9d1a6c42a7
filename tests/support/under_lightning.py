"""Trains a recipe under Lightning's Trainer; imported on ranks, which have Lightning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lightning.pytorch as lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from adapters.lightning import LightningAdapter, exchange_callback
from collectives import Exchange, Ring
from tests.support.nets import Moves, Whole, loss_of, rows_of
from tests.support.probe import trainer
from tests.support.recipe import Recipe, Weights, optimizers, weights_of

__all__ = ["ByHand", "Trained", "train", "trained", "trainer_for"]


class Trained(lightning.LightningModule):
    """Holds the recipe's net and its exchange, or what stands for it in one process."""

    def __init__(self, recipe: Recipe, moves: Moves | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        self.moves = moves or Exchange(Ring, LightningAdapter(self), timeout=recipe.timeout)
        self.net = recipe.net(self.moves)
        if recipe.precision == "64-true":
            self.net.double()  # Lightning loads a checkpoint before it converts the module

    def configure_callbacks(self) -> list[lightning.Callback]:
        if not isinstance(self.moves, Exchange):
            return []
        return [exchange_callback(lightning.Callback, self.moves)]

    def train_dataloader(self) -> Iterable[Tensor]:
        if isinstance(self.moves, Exchange) and self.recipe.even:
            return self.recipe.epoch(self.moves)
        return _loader(self.recipe.batches(self.moves))

    def val_dataloader(self) -> Iterable[Tensor]:
        return _loader([rows_of(99, self.moves), rows_of(98, self.moves)])

    test_dataloader = predict_dataloader = val_dataloader

    def training_step(self, rows: Tensor) -> Tensor:
        return loss_of(self.net(rows), self.moves)

    def validation_step(self, rows: Tensor) -> None:
        self.log("loss", loss_of(self.net(rows), self.moves), sync_dist=True, batch_size=1)

    test_step = validation_step

    def predict_step(self, rows: Tensor) -> Tensor:
        made: Tensor = self.net(rows)
        return made

    def on_train_batch_end(self, *_: object) -> None:
        if self.recipe.after_step(self.net):
            self.trainer.should_stop = True

    def configure_optimizers(self) -> Any:
        made = optimizers(self.net, split=self.recipe.split)
        return made if self.recipe.split else made[0]


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


def _loader(batches: list[Tensor]) -> DataLoader[Tensor]:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def trained(recipe: Recipe, alone_for: int = 0) -> Trained:
    """Return the module for ranks, or for one process that has the rows of ``alone_for`` ranks."""
    return Trained(recipe, Whole(alone_for) if alone_for else None)


def trainer_for(recipe: Recipe, size: int = 1, **changes: object) -> lightning.Trainer:
    """Return a Trainer for ranks of the pool; with size 1 for a process by itself."""
    options: dict[str, object] = {
        "devices": size,
        "strategy": DDPStrategy(**recipe.ddp) if size > 1 else "auto",  # type: ignore[arg-type]
        "precision": recipe.precision,
        "max_epochs": recipe.epochs,
        "accumulate_grad_batches": recipe.accumulate,
        "gradient_clip_val": recipe.clip,
        "limit_train_batches": None,
        "limit_val_batches": 0,
        **recipe.trainer,
        **changes,
    }
    return trainer("lightning.pytorch", **options)


def train(recipe: Recipe, size: int) -> Weights:
    module = ByHand(recipe) if recipe.split else Trained(recipe)
    changes: dict[str, object] = {}
    checkpoint = recipe.save or recipe.resume
    if checkpoint is not None:
        keep = int(recipe.save is not None)
        saving = ModelCheckpoint(checkpoint.parent, checkpoint.stem, save_top_k=keep)
        changes = {"enable_checkpointing": True, "callbacks": [saving]}
    if recipe.resume is not None:
        changes |= {"max_epochs": recipe.epochs + 1}  # the one before included
    trainer_for(recipe, size, **changes).fit(module, ckpt_path=recipe.resume)
    return weights_of(module.net)
