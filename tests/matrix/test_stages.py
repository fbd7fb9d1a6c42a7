"""What is around training: sanity check, validation, test, prediction, the next training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collectives.testing.pool import RankPool
from tests.support.cells import runtimes
from tests.support.nets import Net, evaluate
from tests.support.recipe import Recipe, Weights, assert_trained, reference, train, weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")


def stages(size: int, alone_for: int = 0) -> tuple[list[float], list[Tensor], Weights]:
    """Return the losses of validation in fit, validate and test; predictions; weights."""
    from tests.support.under_lightning import trained, trainer_for

    module = trained(Recipe(), alone_for)
    trainer = trainer_for(Recipe(), size, limit_val_batches=2, num_sanity_val_steps=2)
    trainer.fit(module)
    losses = [trainer.callback_metrics["loss"].item()]
    losses += [
        stage(module, verbose=False)[0]["loss"] for stage in (trainer.validate, trainer.test)
    ]
    predictions = trainer.predict(module)
    assert predictions is not None
    return losses, [torch.as_tensor(made) for made in predictions], weights_of(module.net)


@pytest.mark.cell("fit, validate, test, predict with one Trainer", "lightning")
@pytest.mark.cell("sanity check", "lightning")
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.matrix)])
def test_every_stage_of_a_trainer_gives_the_numbers_of_one_process(
    size: int, rank_pool: RankPool
) -> None:
    (expected, whole, weights), *_ = rank_pool.run(stages, 1, size, size=1, backend=None)
    for rank, (losses, predictions, found) in enumerate(rank_pool.run(stages, size, size=size)):
        assert losses == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(torch.stack(predictions), torch.stack(whole)[:, rank])
        assert_trained(found, weights)
    assert_trained(weights, reference(Recipe(), size))
    assert len(set(expected)) == 1


@runtimes("evaluation under no_grad and inference_mode")
@pytest.mark.ranks(2)
def test_a_module_is_evaluated_between_steps_as_in_one_process(runtime: str) -> None:
    def losses(train: Callable[[Recipe], object]) -> list[float]:
        def look(net: Net) -> bool:
            with torch.inference_mode():
                found.append(evaluate(net, 98).item())
            found.append(evaluate(net).item())
            return False

        found: list[float] = []
        train(Recipe(after_step=look))
        return found

    expected = losses(lambda recipe: reference(recipe, 2))
    assert losses(lambda recipe: train(runtime, recipe, 2)) == pytest.approx(expected, rel=1e-10)
    assert len(expected) == 6


@runtimes("two trainings in one process")
@pytest.mark.ranks(2)
def test_two_trainings_of_a_process_share_its_group_and_nothing_else(runtime: str) -> None:
    recipes = [Recipe(), Recipe(clip=0.1, steps=2)]
    world = dist.group.WORLD
    for recipe in (*recipes, *recipes):
        assert_trained(train(runtime, recipe, 2), reference(recipe, 2))
        assert dist.group.WORLD is world


@pytest.mark.cell("two Trainers in one process, in turns", "lightning")
@pytest.mark.ranks(2)
def test_two_trainers_take_turns_over_one_group() -> None:
    from tests.support.under_lightning import Trained, trainer_for

    modules = [Trained(Recipe()), Trained(Recipe(clip=0.1))]
    trainers = [trainer_for(module.recipe, 2, limit_val_batches=2) for module in modules]
    for trainer, module in zip(trainers, modules, strict=True):
        trainer.fit(module)
    for trainer, module in zip(trainers, modules, strict=True):
        trainer.validate(module, verbose=False)
        assert_trained(weights_of(module.net), reference(module.recipe, 2))
    expected = [reference(module.recipe, 2) for module in modules]
    assert not expected[0]["head.weight"].allclose(expected[1]["head.weight"])
