"""Trains a recipe in a plain loop, under DistributedDataParallel where there are several ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.nets import Net, loss_of
from tests.support.recipe import Recipe, Weights, autocast, optimizers, weights_of

__all__ = ["train", "train_with"]


def train(recipe: Recipe, size: int) -> Weights:
    with RawDDPAdapter() as adapter:
        return train_with(adapter, recipe, size)


def train_with(adapter: RawDDPAdapter, recipe: Recipe, size: int) -> Weights:
    """Train over the group of an adapter."""
    exchange = Exchange(Ring, adapter, timeout=recipe.timeout)
    net = recipe.net(exchange).to(recipe.dtype)
    options: dict[str, Any] = dict(recipe.ddp)
    model = DistributedDataParallel(net, **options) if size > 1 else net
    made = optimizers(net, split=recipe.split)
    if recipe.resume is not None:
        weights, state = torch.load(recipe.resume)
        net.load_state_dict(weights)
        made[0].load_state_dict(state)
    _loop(recipe, net, model, made)
    if recipe.save is not None and exchange.rank == 0:
        torch.save([net.state_dict(), made[0].state_dict()], recipe.save)
    return weights_of(net)


def _loop(recipe: Recipe, net: Net, model: nn.Module, made: list[torch.optim.SGD]) -> None:
    exchange = net.moves
    assert isinstance(exchange, Exchange)
    # its own first scale is too large for float16 here, and it would leave out steps
    scaler = torch.amp.GradScaler("cpu", 256, enabled=recipe.precision == "16-mixed")
    for number, rows in enumerate(recipe.loop(exchange), start=1):
        last = number % recipe.accumulate == 0
        with _no_sync(model, enabled=not last):
            with autocast(recipe):
                loss = loss_of(model(rows), exchange)
            scaler.scale(loss / recipe.accumulate).backward()
        if last:
            if recipe.clip is not None:
                for optimizer in made:
                    scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            for optimizer in made:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            if recipe.after_step(net):
                break


def _no_sync(model: nn.Module, *, enabled: bool) -> AbstractContextManager[None]:
    if enabled and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()
