"""Trains a recipe under Fabric; imported on ranks, which have Lightning."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.strategies.ddp import DDPStrategy

from adapters.fabric import FabricAdapter
from collectives import Exchange, Ring
from tests.support.nets import Net, loss_of
from tests.support.probe import fabric
from tests.support.recipe import Recipe, Weights, optimizers, weights_of

__all__ = ["train"]


def train(recipe: Recipe, size: int) -> Weights:
    strategy = DDPStrategy(**recipe.ddp) if size > 1 else "auto"  # type: ignore[arg-type]
    # its "64-true" gives results in float32, as torch's default dtype is
    doubles = recipe.precision == "64-true"
    precision = "32-true" if doubles else recipe.precision
    runtime = fabric("lightning.pytorch", devices=size, strategy=strategy, precision=precision)
    runtime.launch()
    with Exchange(Ring, FabricAdapter(runtime), timeout=recipe.timeout) as exchange:
        net = recipe.net(exchange).to(torch.float64 if doubles else torch.float32)
        model, *made = runtime.setup(net, *optimizers(net, split=recipe.split))
        state = {"net": model, "optimizer": made[0]}
        if recipe.resume is not None:
            runtime.load(recipe.resume, state)
        _loop(recipe, runtime, net, model, made)
        if recipe.save is not None:
            runtime.save(recipe.save, state)
        return weights_of(net)


def _loop(recipe: Recipe, runtime: Any, net: Net, model: Any, made: list[Any]) -> None:
    exchange = net.moves
    assert isinstance(exchange, Exchange)
    for number, rows in enumerate(recipe.loop(exchange), start=1):
        last = number % recipe.accumulate == 0
        with runtime.no_backward_sync(model, enabled=not last):
            loss = loss_of(model(rows), exchange)
            runtime.backward(loss / recipe.accumulate)
        if last:
            for optimizer in made:
                if recipe.clip is not None:
                    runtime.clip_gradients(model, optimizer, max_norm=recipe.clip)
                optimizer.step()
                optimizer.zero_grad()
            if recipe.after_step(net):
                break
