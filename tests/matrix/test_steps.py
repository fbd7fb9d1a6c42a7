"""Gradients between batches: accumulated, clipped, given to several optimizers, computed again."""

from __future__ import annotations

import pytest

from tests.support.cells import runtimes
from tests.support.nets import Checkpointed, Folding, Overlapping, Reentrant
from tests.support.recipe import Recipe, assert_trained, reference, train

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
