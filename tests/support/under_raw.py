"""Trains a recipe in a plain loop, under DistributedDataParallel where there are several ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.nets import loss_of
from tests.support.recipe import Recipe, Weights, autocast, optimizers, weights_of

__all__ = ["train"]


def train(recipe: Recipe, size: int) -> Weights:
    with RawDDPAdapter() as adapter:
        exchange = Exchange(Ring, adapter)
        net = recipe.net(exchange).to(recipe.dtype)
        options: dict[str, Any] = dict(recipe.ddp)
        model = DistributedDataParallel(net, **options) if size > 1 else net
        _loop(recipe, exchange, model)
        return weights_of(net)


def _loop(recipe: Recipe, exchange: Exchange, model: nn.Module) -> None:
    made = optimizers(model, split=recipe.split)
    for number, rows in enumerate(recipe.batches(exchange.rank), start=1):
        last = number % recipe.accumulate == 0
        wrapped = isinstance(model, DistributedDataParallel) and not last
        with cast("DistributedDataParallel", model).no_sync() if wrapped else nullcontext():
            with autocast(recipe):
                loss = loss_of(model(rows.to(recipe.dtype)), exchange)
            (loss / recipe.accumulate).backward()
        if last:
            if recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
