"""Lower precision: what travels has the dtype that it has, and ranks that differ are told."""

from __future__ import annotations

import pytest

from tests.support.cells import runtimes
from tests.support.recipe import Recipe, assert_trained, reference, train


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@runtimes("bf16-mixed, autocast")
@pytest.mark.ranks(2)
def test_autocast_trains_as_one_process_in_autocast(runtime: str) -> None:
    recipe = Recipe(precision="bf16-mixed")
    found = train(runtime, recipe, 2)
    assert_trained(found, reference(recipe, 2), rtol=1e-2, atol=1e-3)
    for name, weight in reference(Recipe(), 2).items():
        print(name, (found[name]-weight).abs().max(), (found[name]-reference(recipe, 2)[name]).abs().max())


@runtimes("bf16-true")
@pytest.mark.ranks(2)
def test_weights_in_bfloat16_train_as_one_process(runtime: str) -> None:
    recipe = Recipe(precision="bf16-true")
    found = train(runtime, recipe, 2)
    for name, weight in reference(Recipe(), 2).items():
        print(name, (found[name]-weight).abs().max(), (found[name]-reference(recipe, 2)[name]).abs().max())
    assert_trained(found, reference(recipe, 2), rtol=1e-2, atol=1e-2)


@runtimes("16-true")
@pytest.mark.ranks(2)
def test_weights_in_float16_train_as_one_process(runtime: str) -> None:
    recipe = Recipe(precision="16-true")
    found = train(runtime, recipe, 2)
    for name, weight in reference(Recipe(), 2).items():
        print(name, (found[name]-weight).abs().max(), (found[name]-reference(recipe, 2)[name]).abs().max())
    assert_trained(found, reference(recipe, 2), rtol=1e-2, atol=1e-3)
