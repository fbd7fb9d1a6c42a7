"""Gradients between batches: accumulated, clipped, given to several optimizers, computed again."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tests.support.cells import runtimes
from tests.support.nets import (
    Checkpointed,
    Folding,
    Net,
    Overlapping,
    Reentrant,
    Whole,
    loss_of,
)
from tests.support.recipe import (
    Recipe,
    assert_trained,
    optimizers,
    reference,
    train,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("no_launcher")


@runtimes("gradient accumulation without synchronisation")
@pytest.mark.ranks(2)
def test_batches_are_accumulated_as_in_one_process(runtime: str) -> None:
    recipe = Recipe(accumulate=2)
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@runtimes("gradient clipping")
@pytest.mark.ranks(2)
def test_the_norm_that_is_clipped_is_that_of_the_whole_gradient(runtime: str) -> None:
    recipe = Recipe(clip=0.1)
    expected = reference(recipe, 2)
    assert_trained(train(runtime, recipe, 2), expected)
    free = reference(Recipe(), 2)
    assert not expected["head.weight"].allclose(free["head.weight"], rtol=1e-2)


@runtimes("several optimizers")
@pytest.mark.cell("manual optimization", "lightning")
@pytest.mark.ranks(2)
def test_two_optimizers_step_as_in_one_process(runtime: str) -> None:
    recipe = Recipe(split=True)
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@runtimes("activation checkpoints, not reentrant")
@pytest.mark.ranks(2)
def test_an_exchange_inside_a_checkpoint_is_made_again_on_all_ranks(runtime: str) -> None:
    recipe = Recipe(net=Checkpointed)
    assert_trained(train(runtime, recipe, 2), reference(Recipe(), 2))


@runtimes("activation checkpoints, reentrant")
@pytest.mark.ranks(2)
def test_an_exchange_inside_a_reentrant_checkpoint_is_made_again(runtime: str) -> None:
    recipe = Recipe(net=Reentrant)
    assert_trained(train(runtime, recipe, 2), reference(Recipe(), 2))


@runtimes("start_shift inside the module")
@pytest.mark.ranks(2)
def test_what_is_on_its_way_while_the_module_computes_arrives(runtime: str) -> None:
    recipe = Recipe(net=Overlapping)
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@runtimes("ring_fold inside the module")
@pytest.mark.ranks(2)
def test_a_fold_round_the_ring_is_computed_again_in_backward(runtime: str) -> None:
    recipe = Recipe(net=Folding)
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@pytest.mark.cell("manual optimization", "lightning")
@pytest.mark.ranks(2)
def test_two_losses_that_are_joined_where_they_are_computed_go_backward_one_by_one() -> None:
    from tests.support.under_lightning import ByHand, trainer_for

    class TwoLosses(ByHand):
        def training_step(self, rows: Tensor) -> Tensor:
            optimizer: Any = self.optimizers()
            losses = [loss_of(self.net(rows * scale), self.moves) / 2 for scale in (1, 2)]
            for loss in losses:
                self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return losses[0]

        def configure_optimizers(self) -> Any:
            return optimizers(self.net, split=False)[0]

    whole, expected = Whole(2), Net(Whole(2)).double()
    (optimizer,) = optimizers(expected, split=False)
    for rows in Recipe().batches(whole):
        for scale in (1, 2):
            (loss_of(expected(rows * scale), whole) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    module = TwoLosses(Recipe())
    trainer_for(Recipe(), 2).fit(module)
    assert_trained(weights_of(module.net), weights_of(expected))
