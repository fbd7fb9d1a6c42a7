"""Checkpoints of two ranks: training goes on where another number of ranks takes it up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from collectives.testing.pool import RankPool
from tests.support.cells import runtimes
from tests.support.recipe import Recipe, assert_trained, reference, train

pytestmark = pytest.mark.usefixtures("no_launcher")


def run(pool: RankPool, runtime: str, recipe: Recipe, size: int) -> list[dict[str, torch.Tensor]]:
    backend = "gloo" if size > 1 else None
    return pool.run(train, runtime, recipe, size, size=size, backend=backend)


@runtimes("checkpoint of 2 ranks resumes on 1, 2 and 3", slow=("fabric", "raw"))
def test_a_checkpoint_of_two_ranks_resumes_on_any_number_of_ranks(
    runtime: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    half = tmp_path / "half.ckpt"
    for weights in run(rank_pool, runtime, Recipe(save=half), 2):
        assert_trained(weights, reference(Recipe(), 2))
    for size in (1, 2, 3):
        for weights in run(rank_pool, runtime, Recipe(resume=half), size):
            assert_trained(weights, reference(Recipe(), 2, size))


def shape_of(saved: object) -> object:
    """Leave out the numbers that were trained."""
    if isinstance(saved, dict):
        return {key: shape_of(value) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return [shape_of(value) for value in saved]
    return (saved.dtype, saved.shape) if isinstance(saved, torch.Tensor) else saved


@runtimes("checkpoint without anything of the exchange in it", slow=("fabric", "raw"))
def test_a_checkpoint_is_the_same_whatever_the_number_of_ranks(
    runtime: str, rank_pool: RankPool, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{size}" / "whole.ckpt" for size in (1, 2, 3)]
    for size, path in enumerate(paths, start=1):
        path.parent.mkdir()
        run(rank_pool, runtime, Recipe(save=path), size)
    # weights_only refuses to unpickle what is not torch's own
    saved = [shape_of(torch.load(path, weights_only=True)) for path in paths]
    texts = [str(of).replace(str(path.parent), "") for of, path in zip(saved, paths, strict=True)]
    assert texts[0] == texts[1] == texts[2]
    assert "encoder.weight" in texts[0]
    assert "exchange" not in texts[0]
