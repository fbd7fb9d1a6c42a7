"""Averages of weights: the module is deep-copied, and the copy exchanges like the original."""

from __future__ import annotations

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from collectives.testing.pool import RankPool
from tests.support.cells import runtimes
from tests.support.nets import Net, evaluate
from tests.support.recipe import Recipe, Weights, assert_trained, reference, train, weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")


class Averaging:
    """Averages the weights after each step in a copy of the module."""

    def __init__(self) -> None:
        self.copies: list[AveragedModel] = []

    def __call__(self, net: Net) -> bool:
        if not self.copies:
            self.copies.append(AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5)))
        self.copies[0].update_parameters(net)
        return False

    @property
    def average(self) -> Net:
        net = self.copies[0].module
        assert isinstance(net, Net)
        return net


@runtimes("averaged weights (deepcopy)")
@pytest.mark.ranks(2)
def test_a_copy_that_averages_weights_exchanges_like_its_original(runtime: str) -> None:
    found, expected = Averaging(), Averaging()
    trained = train(runtime, Recipe(after_step=found), 2)
    assert_trained(trained, reference(Recipe(after_step=expected), 2))
    assert_trained(weights_of(found.average), weights_of(expected.average))
    torch.testing.assert_close(evaluate(found.average), evaluate(expected.average))


def averaged_by_callback(kind: str, size: int, alone_for: int = 0) -> tuple[Weights, float]:
    from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging

    from tests.support.under_lightning import trained, trainer_for

    callbacks = {
        "EMA": EMAWeightAveraging(decay=0.5),
        "SWA": StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1),
    }
    module = trained(Recipe(), alone_for)
    trainer_for(Recipe(epochs=4), size, callbacks=[callbacks[kind]]).fit(module)
    return weights_of(module.net), evaluate(module.net).item()


@pytest.mark.cell("EMA and SWA callbacks", "lightning")
@pytest.mark.parametrize("kind", ["EMA", pytest.param("SWA", marks=pytest.mark.matrix)])
def test_callbacks_that_average_weights_give_those_of_one_process(
    kind: str, rank_pool: RankPool
) -> None:
    (expected, loss), *_ = rank_pool.run(averaged_by_callback, kind, 1, 2, size=1, backend=None)
    for weights, found in rank_pool.run(averaged_by_callback, kind, 2, size=2):
        assert_trained(weights, expected)
        assert found == pytest.approx(loss)
    last = reference(Recipe(epochs=4), 2)
    assert not expected["head.weight"].allclose(last["head.weight"], rtol=1e-3)
