"""Strategies in which every rank holds the whole model: the weights of one process come out."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.support.cells import runtimes
from tests.support.nets import Skipping
from tests.support.recipe import Recipe, assert_trained, reference, train

pytestmark = pytest.mark.usefixtures("no_launcher")


@runtimes("single device")
@pytest.mark.ranks(1, backend=None)
def test_one_device_without_any_group_trains_as_plain_torch(runtime: str) -> None:
    assert_trained(train(runtime, Recipe(), 1), reference(Recipe(), 1))
    assert not dist.is_initialized()


@runtimes("ddp")
@pytest.mark.ranks(2, 3)
def test_ddp_trains_as_one_process_with_the_batches_of_all_ranks(
    runtime: str, world_size: int
) -> None:
    assert_trained(train(runtime, Recipe(), world_size), reference(Recipe(), world_size))


@runtimes("ddp, find_unused_parameters")
@pytest.mark.ranks(2)
def test_a_layer_that_one_rank_leaves_out_is_trained_by_the_other(runtime: str) -> None:
    recipe = Recipe(net=Skipping, ddp={"find_unused_parameters": True})
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@runtimes("ddp, static_graph")
@pytest.mark.ranks(2)
def test_a_static_graph_trains_as_one_process(runtime: str) -> None:
    recipe = Recipe(ddp={"static_graph": True})
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


@runtimes("ddp, gradient_as_bucket_view")
@pytest.mark.ranks(2)
def test_gradients_that_are_views_of_buckets_train_as_one_process(runtime: str) -> None:
    recipe = Recipe(ddp={"gradient_as_bucket_view": True})
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))
