"""Lower precision: what travels has the dtype that it has, and ranks that differ are told."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from collectives.errors import ExchangeMismatch
from tests.support.cells import runtimes
from tests.support.recipe import Precision, Recipe, Weights, assert_trained, reference, train

pytestmark = pytest.mark.usefixtures("no_launcher")


def differs(found: Weights, expected: Weights) -> bool:
    """Whether the precision had an effect at all."""
    return any(not w.double().allclose(expected[name], rtol=1e-6) for name, w in found.items())


def assert_same_precision(runtime: str, precision: Precision, atol: float) -> None:
    recipe = Recipe(precision=precision)
    found = train(runtime, recipe, 2)
    assert {weight.dtype for weight in found.values()} == {recipe.dtype}
    assert_trained(found, reference(recipe, 2), rtol=1e-2, atol=atol)
    assert differs(found, reference(Recipe(), 2))


@runtimes("bf16-mixed, autocast")
@pytest.mark.ranks(2)
def test_autocast_trains_as_one_process_in_autocast(runtime: str) -> None:
    assert_same_precision(runtime, "bf16-mixed", 2e-3)


@runtimes("bf16-true")
@pytest.mark.ranks(2)
def test_weights_in_bfloat16_train_as_one_process_with_such_weights(runtime: str) -> None:
    assert_same_precision(runtime, "bf16-true", 4e-3)


@runtimes("16-true")
@pytest.mark.ranks(2)
def test_weights_in_float16_train_as_one_process_with_such_weights(runtime: str) -> None:
    assert_same_precision(runtime, "16-true", 1e-3)


@runtimes("16-mixed with a gradient scaler, on the CPU", "raw")
@pytest.mark.ranks(2)
def test_a_gradient_scaler_and_autocast_train_as_one_process_in_autocast(runtime: str) -> None:
    assert_same_precision(runtime, "16-mixed", 1e-3)


@runtimes("16-mixed with a gradient scaler, on the CPU", "lightning", "fabric")
@pytest.mark.ranks(2)
def test_without_a_gpu_lightning_takes_bfloat16_in_place_of_float16(
    runtime: str, rank: int
) -> None:
    text = "AMP with fp16 is not supported on CPU. Using `precision='bf16-mixed'` instead"
    said = pytest.warns(UserWarning, match=text)
    with said if rank == 0 else nullcontext():
        found = train(runtime, Recipe(precision="16-mixed"), 2)
    assert_trained(found, train(runtime, Recipe(precision="bf16-mixed"), 2), rtol=0, atol=0)


@runtimes("autocast on one rank only: an error that names both dtypes", slow=("fabric", "raw"))
@pytest.mark.ranks(2, fresh=True)
def test_autocast_on_one_rank_only_is_an_error_that_names_both_dtypes(
    runtime: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLECTIVES_STALL", "0.3")
    both = r"(?s)bfloat16\[3, \d\].*float32\[3, \d\]|float32\[3, \d\].*bfloat16\[3, \d\]"
    with pytest.raises(ExchangeMismatch, match=both):
        train(runtime, Recipe(precision="bf16-mixed" if rank else "32-true"), 2)
