"""How a loop ends: early on all ranks, with uneven batches, by an exception on one of them."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist
from torch import Tensor

from collectives.errors import PeerLost
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support.cells import runtimes
from tests.support.nets import Moves, Net, evaluate
from tests.support.recipe import Recipe, Weights, assert_trained, reference, train, weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")


class Stopping:
    """Stops when the loss over all ranks has risen."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, net: Net) -> bool:
        self.losses.append(evaluate(net).item())
        return len(self.losses) > 1 and self.losses[-1] > self.losses[-2]


@runtimes("early stopping")
@pytest.mark.ranks(2)
def test_all_ranks_stop_at_the_step_at_which_one_process_does(runtime: str) -> None:
    found, expected = Stopping(), Stopping()
    weights = reference(Recipe(steps=20, after_step=expected), 2)
    assert 2 < len(expected.losses) < 20
    assert_trained(train(runtime, Recipe(steps=20, after_step=found), 2), weights)
    assert found.losses == pytest.approx(expected.losses)


def stopped_by_callback(size: int, alone_for: int = 0) -> tuple[int, Weights]:
    from lightning.pytorch.callbacks import EarlyStopping

    from tests.support.under_lightning import trained, trainer_for

    callback = EarlyStopping("loss", patience=1)
    module = trained(Recipe(), alone_for)
    recipe = Recipe(epochs=20)
    trainer_for(recipe, size, callbacks=[callback], limit_val_batches=2).fit(module)
    return callback.stopped_epoch, weights_of(module.net)


@pytest.mark.cell("EarlyStopping callback", "lightning")
def test_the_callback_stops_all_ranks_at_the_epoch_at_which_one_process_stops(
    rank_pool: RankPool,
) -> None:
    (epoch, expected), *_ = rank_pool.run(stopped_by_callback, 1, 2, size=1, backend=None)
    assert 0 < epoch < 19
    for found, weights in rank_pool.run(stopped_by_callback, 2, size=2):
        assert found == epoch
        assert_trained(weights, expected)


@runtimes("uneven batches, even_steps")
@pytest.mark.ranks(2)
def test_with_even_steps_the_shorter_loader_ends_the_loop_on_all_ranks(runtime: str) -> None:
    recipe = Recipe(longer=2, even=True, epochs=2)
    assert_trained(train(runtime, recipe, 2), reference(recipe, 2))


def longer_on_0(runtime: str) -> None:
    train(runtime, Recipe(longer=1), 2)
    if dist.get_rank() == 1:
        os._exit(0)


@runtimes("uneven batches without even_steps: an error", slow=("fabric", "raw"))
def test_a_rank_with_more_batches_than_the_other_is_told_that_it_has_ended(
    runtime: str, rank_pool: RankPool
) -> None:
    rank_pool.discard()
    with pytest.raises(RanksFailedError) as caught:
        rank_pool.run(longer_on_0, runtime, size=2)
    text = str(caught.value)
    assert "rank 1 of 2 exited with status 0" in text
    assert "rank 0 failed after it: collectives.errors.PeerLost: exchange #7 shift" in text


class Failing(Net):
    """Fails on rank 1 in its second step."""

    error: type[BaseException] = ValueError

    def __init__(self, moves: Moves) -> None:
        super().__init__(moves)
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2 and self.moves.rank == 1:
            raise self.error("bad batch")
        return super().forward(rows)


class Interrupted(Failing):
    error = KeyboardInterrupt


@runtimes("exception on one rank")
@pytest.mark.ranks(2, fresh=True)
def test_an_exception_on_one_rank_ends_the_other_at_once(runtime: str, rank: int) -> None:
    expected = ValueError if rank == 1 else PeerLost
    with pytest.raises(expected, match="bad batch"):
        train(runtime, Recipe(net=Failing), 2)


@runtimes("KeyboardInterrupt on one rank", slow=("fabric", "raw"))
@pytest.mark.ranks(2, fresh=True)
def test_an_interrupt_of_one_rank_ends_the_other_at_once(runtime: str, rank: int) -> None:
    ended = SystemExit if runtime == "lightning" else KeyboardInterrupt  # Lightning exits
    with pytest.raises(ended if rank == 1 else PeerLost) as caught:
        train(runtime, Recipe(net=Interrupted), 2)
    assert rank == 1 or "KeyboardInterrupt: bad batch [reported by rank 1]" in str(caught.value)
