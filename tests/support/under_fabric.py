"""Trains a recipe under Fabric; imported on ranks, which have Lightning."""

from __future__ import annotations

from typing import Any

from lightning.fabric.strategies.ddp import DDPStrategy

from adapters.fabric import FabricAdapter
from collectives import Exchange, Ring
from tests.support.nets import Net, loss_of
from tests.support.probe import fabric
from tests.support.recipe import Recipe, Weights, optimizers, weights_of

__all__ = ["fabric_for", "numbers", "train", "trained"]


def train(recipe: Recipe, size: int) -> Weights:
    runtime = fabric_for(recipe, size, DDPStrategy(**recipe.ddp) if size > 1 else "auto")  # type: ignore[arg-type]
    runtime.launch()
    return trained(runtime, recipe)


def fabric_for(recipe: Recipe, size: int, strategy: object, **changes: object) -> Any:
    """Return a Fabric for ranks of the pool; with size 1 for a process by itself."""
    # its "64-true" gives results in float32, as torch's default dtype is
    precision = "32-true" if recipe.precision == "64-true" else recipe.precision
    options = {"devices": size, "strategy": strategy, "precision": precision, **changes}
    return fabric("lightning.pytorch", **options)


def trained(runtime: Any, recipe: Recipe) -> Weights:
    """Train in a process of a Fabric that was launched."""
    with Exchange(Ring, FabricAdapter(runtime), timeout=recipe.timeout) as exchange:
        net = recipe.net(exchange)
        if recipe.precision == "64-true":
            net.double()
        model, *made = runtime.setup(net, *optimizers(net, split=recipe.split))
        state = {"net": model, "optimizer": made[0]}
        if recipe.resume is not None:
            runtime.load(recipe.resume, state)
        _loop(recipe, runtime, net, model, made)
        if recipe.save is not None:
            runtime.save(recipe.save, state)
        return weights_of(net)


def numbers(runtime: Any, *, recipe: Recipe) -> dict[str, list[float]]:
    """Train, and return what a process can send that ends at once: a tensor would end with it."""
    return {name: weight.tolist() for name, weight in trained(runtime, recipe).items()}


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
