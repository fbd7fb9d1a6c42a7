"""G: inside Lightning, on ranks of the pool. See README.md for the entries and public reports."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.lightning import LightningAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ContextError, ExchangeMismatch
from collectives.testing import Simulation
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support.probe import loader, trainer
from tests.support.worlds import SIZES, World

LIGHTNING = "lightning.pytorch"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.ranks(1, backend=None)
def test_in_init_it_is_too_early_and_the_text_says_when() -> None:
    """C79: rank per hook. Lightning-AI/pytorch-lightning#6318,
    Lightning-AI/pytorch-lightning#19331, Lightning-AI/pytorch-lightning#15734,
    Lightning-AI/pytorch-lightning#20632, Lightning-AI/litData#250,
    ray-project/ray_lightning#175."""
    from tests.support.passing import Passing

    class Early(Passing):
        def __init__(self) -> None:
            super().__init__()
            self.note("__init__")

    with pytest.raises(ContextError, match=r"in setup\(\) or later"):
        Early()


@pytest.mark.ranks(2, 3)
def test_what_is_made_in_init_finds_the_right_rank_in_every_hook(
    rank: int, world_size: int
) -> None:
    """C79: where ``self.global_rank`` in ``__init__`` is 0 on every rank, without an error."""
    from tests.support.passing import Passing

    module = Passing()
    trainer(LIGHTNING, devices=world_size).fit(module, loader(), loader())
    assert module.rank_in_init == 0
    hooks = {"configure_model", "setup", "training_step", "validation_step"}
    assert module.arrived.keys() == hooks
    assert {x.item() for x in module.arrived.values()} == {(rank - 1) % world_size}


@pytest.mark.ranks(1, backend=None)
def test_a_group_cannot_be_made_in_init() -> None:
    """C80, control: what the exchange above does not need."""
    with pytest.raises(ValueError, match="process group has not been initialized"):
        dist.new_group([0])


@pytest.mark.ranks(3)
def test_a_group_made_in_setup_can_be_exchanged_over(rank: int) -> None:
    """C80: new_group in ``__init__`` and in setup. Lightning-AI/pytorch-lightning#20632,
    pytorch/pytorch#63277, Lightning-AI/pytorch-lightning#9341."""
    from tests.support.passing import Passing

    members = [0, 2]

    class Grouped(Passing):
        def setup(self, stage: str) -> None:  # noqa: ARG002
            group = dist.new_group(members)
            self.pair = Exchange(Ring, LightningAdapter(self, group=group))

        def training_step(self, batch: list[Tensor]) -> Tensor:
            if rank in members:
                other = self.pair.shift(torch.tensor([float(rank)]))
                assert other.item() == 2 - rank
            return super().training_step(batch)

    module = Grouped()
    trainer(LIGHTNING, devices=3).fit(module, loader(), loader())
    assert module.arrived["training_step"].item() == (rank - 1) % 3


def validate_on_0_only() -> None:
    from tests.support.passing import Passing

    class Alone(Passing):
        def validation_step(self, batch: list[Tensor]) -> None:
            if self.trainer.is_global_zero:
                self.exchange.shift(batch[0], timeout=2)

    trainer(LIGHTNING).validate(Alone(), loader(), verbose=False)


def test_an_exchange_of_one_rank_only_ends_at_its_deadline(rank_pool: RankPool) -> None:
    """C82: collectives on some ranks, uneven gathers. Lightning-AI/pytorch-lightning#16541,
    Lightning-AI/pytorch-lightning#20683, Lightning-AI/pytorch-lightning#19680,
    Lightning-AI/pytorch-lightning#17085, Lightning-AI/pytorch-lightning#7695,
    Lightning-AI/pytorch-lightning#17046."""
    with pytest.raises(RanksFailedError) as caught:
        rank_pool.run(validate_on_0_only, size=2, timeout=40)
    text = str(caught.value)
    assert "rank 0 of 2 failed first" in text
    assert "collectives.errors.ExchangeTimeout" in text
    assert "rank 0 got no answer from rank 1" in text


def uneven(adapter: Adapter, *, like: bool) -> list[int]:
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    sizes = [rank + 1]
    passing = torch.full((rank + 1, 2), float(rank))
    for step in range(1, size):
        source = (rank - step) % size
        passing = exchange.shift(passing, like=torch.empty(source + 1, 2) if like else None)
        assert passing.eq(source).all()
        sizes.append(len(passing))
    return sizes


def uneven_with_like(adapter: Adapter) -> list[int]:
    return uneven(adapter, like=True)


@pytest.mark.parametrize("size", SIZES)
def test_uneven_rows_arrive_whole_when_their_sizes_are_given(world: World, size: int) -> None:
    """C82: round the ring instead of all_gather, which aborts or returns garbage for them."""
    expected = [[(rank - step) % size + 1 for step in range(size)] for rank in range(size)]
    assert world(uneven_with_like, size) == expected


@pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])
def test_uneven_rows_are_named_when_their_sizes_are_not_given(tags: bool) -> None:
    """C82: never garbage."""
    with pytest.raises(ExchangeMismatch, match=r"differ in tensors: \(float32\[[12], 2\]"):
        Simulation(2, tags=tags).run(lambda adapter: uneven(adapter, like=False))


def raise_on_1() -> None:
    from tests.support.passing import Passing

    class Raising(Passing):
        def training_step(self, batch: list[Tensor]) -> Tensor:
            if self.global_rank == 1:
                raise ValueError("bad batch on rank 1")
            return super().training_step(batch)

    trainer(LIGHTNING).fit(Raising(), loader(), loader())


def test_a_rank_that_raises_in_its_step_ends_the_others_at_once(rank_pool: RankPool) -> None:
    """C83: one rank raises in training_step. Lightning-AI/pytorch-lightning#8130,
    Lightning-AI/pytorch-lightning#11841."""
    with pytest.raises(RanksFailedError) as caught:
        rank_pool.run(raise_on_1, size=2, timeout=40)
    text = str(caught.value)
    assert "rank 1 of 2 failed first" in text
    assert "ValueError: bad batch on rank 1" in text
    assert "rank 0 failed after it: collectives.errors.PeerLost" in text


@pytest.mark.ranks(2)
def test_validation_over_gloo_exchanges_without_gradients() -> None:
    """C84: validation and inference mode: under gloo Lightning uses no_grad (its source)."""
    from tests.support.passing import Passing

    module = Passing()
    trainer(LIGHTNING, num_sanity_val_steps=1).fit(module, loader(), loader())
    assert not module.arrived["validation_step"].is_inference()
    assert module.arrived["training_step"].item() == 1 - module.global_rank


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("inference", [True, False])
def test_validation_in_either_mode_leaves_training_as_it_was(inference: bool) -> None:
    """C84: the inference tensors that a run on one device meets, before and between its fits."""
    from tests.support.passing import Passing

    module = Passing()
    runner = trainer(LIGHTNING, devices=1, strategy="auto", inference_mode=inference)
    for _ in range(2):
        runner.validate(module, loader(), verbose=False)
        assert module.arrived["validation_step"].is_inference() == inference
        runner.fit(module, loader(), loader())
        assert not module.arrived["training_step"].is_inference()
    assert not dist.is_initialized()
