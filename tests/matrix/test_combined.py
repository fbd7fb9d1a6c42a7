"""Features together: all that torch allows, and what it refuses with or without an exchange."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from torch.nn.parallel import DistributedDataParallel

from collectives import Exchange
from tests.support.cells import runtimes
from tests.support.nets import (
    Checkpointed,
    Folding,
    Net,
    Overlapping,
    Reentrant,
    Skipping,
    Whole,
    loss_of,
)
from tests.support.recipe import (
    Precision,
    Recipe,
    assert_trained,
    optimizers,
    reference,
    train,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("no_launcher")

UNUSED, STATIC = {"find_unused_parameters": True}, {"static_graph": True}
OPTIONS: list[dict[str, bool]] = [{}, UNUSED, STATIC, {"gradient_as_bucket_view": True}]
PRECISIONS: list[Precision] = ["64-true", "bf16-mixed"]


def allowed(recipe: Recipe) -> bool:
    """Leave out what DistributedDataParallel refuses, with an exchange or without one."""
    if recipe.net is Skipping and recipe.ddp not in (UNUSED, STATIC):
        return False  # a parameter is unused
    if recipe.net is Reentrant and recipe.ddp == UNUSED:
        return False
    return not (recipe.ddp == STATIC and recipe.accumulate > 1)


def recipes() -> Iterator[Recipe]:
    nets = (Net, Checkpointed, Reentrant, Skipping, Overlapping, Folding)
    for net, ddp, accumulate, clip, precision in itertools.product(
        nets, OPTIONS, (1, 2), (None, 0.1), PRECISIONS
    ):
        recipe = Recipe(net=net, ddp=ddp, accumulate=accumulate, clip=clip, precision=precision)
        if allowed(recipe):
            yield recipe


@pytest.mark.matrix
@runtimes("all combinations of DDP's options, checkpoints, accumulation, clipping, bf16-mixed")
@pytest.mark.ranks(2, timeout=400)
def test_every_combination_trains_as_one_process(runtime: str) -> None:
    count = 0
    for recipe in recipes():
        near = {"rtol": 1e-2, "atol": 3e-3} if recipe.precision == "bf16-mixed" else {}
        assert_trained(train(runtime, recipe, 2), reference(recipe, 2), **near)
        count += 1
    assert count == 88 + 2 * 28


def plain(recipe: Recipe) -> None:
    """Train under DistributedDataParallel without any exchange."""
    whole = Whole(1)
    model = DistributedDataParallel(recipe.net(whole).double(), **recipe.ddp)  # type: ignore[arg-type]
    for number, rows in enumerate(recipe.batches(whole), start=1):
        model.require_backward_grad_sync = number % recipe.accumulate == 0
        loss_of(model(rows), whole).backward()


@runtimes("static_graph with gradient accumulation", slow=("lightning", "fabric"))
@pytest.mark.ranks(2, fresh=True)
def test_a_static_graph_without_synchronisation_fails_in_torch_itself(runtime: str) -> None:
    recipe = Recipe(ddp=STATIC, accumulate=2)
    for training in (lambda: plain(recipe), lambda: train(runtime, recipe, 2)):
        with pytest.raises(RuntimeError, match="expect_autograd_hooks_ INTERNAL ASSERT FAILED"):
            training()


@runtimes("find_unused_parameters with reentrant checkpoints", slow=("lightning", "fabric"))
@pytest.mark.ranks(2, fresh=True)
def test_unused_parameters_with_reentrant_checkpoints_fail_in_torch_itself(runtime: str) -> None:
    recipe = Recipe(ddp=UNUSED, net=Reentrant)
    for training in (lambda: plain(recipe), lambda: train(runtime, recipe, 2)):
        with pytest.raises(RuntimeError, match="Expected to mark a variable ready only once"):
            training()


@pytest.mark.cell("LightningModule under Fabric", "fabric")
@pytest.mark.ranks(2)
def test_a_lightning_module_trains_under_fabric_as_one_process() -> None:
    from tests.support.under_fabric import fabric_for
    from tests.support.under_lightning import Trained

    runtime = fabric_for(Recipe(), 2, "ddp")
    runtime.launch()
    module = Trained(Recipe())
    assert isinstance(module.moves, Exchange)
    model, optimizer = runtime.setup(module, *optimizers(module.net, split=False))
    for rows in module.recipe.batches(module.moves):
        runtime.backward(model.training_step(rows))
        optimizer.step()
        optimizer.zero_grad()
    assert_trained(weights_of(module.net), reference(Recipe(), 2))
