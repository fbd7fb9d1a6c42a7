"""A LightningModule that holds its adapter and an Exchange: copied, pickled, saved, averaged.

pytorch/pytorch#73825, #76927; Lightning-AI/pytorch-lightning#17369; ultralytics/yolov5#13574: a
process group in a module breaks each of these.
"""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from adapters.lightning import LightningAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ContextError
from tests.support.probe import NAMESPACES, loader, ring_class, trainer
from tests.support.runtimes import FakeModule, FakeTrainer, fake_world


class Holder(FakeModule):
    """Picklable by reference, as a class of a user's file is."""

    def __init__(self, trainer: FakeTrainer | None, **options: Any) -> None:
        super().__init__(trainer)
        self.adapter = LightningAdapter(self, **options)


def test_the_copy_of_a_module_gets_an_adapter_that_refers_to_the_copy() -> None:
    original = Holder(FakeTrainer())
    copied = copy.deepcopy(original)
    assert copied.adapter._module is copied
    loaded = pickle.loads(pickle.dumps(original))
    assert loaded.adapter._module is loaded


def test_a_copied_adapter_alone_does_not_copy_its_module() -> None:
    original = Holder(FakeTrainer())
    assert copy.deepcopy(original.adapter)._module is original


def test_a_pickled_trainer_is_left_behind_and_never_replaced_by_a_local_copy() -> None:
    adapter = pickle.loads(pickle.dumps(LightningAdapter(FakeTrainer())))
    with pytest.raises(ContextError, match="no Trainer"):
        adapter.context()
    with fake_world(1, 2) as world:
        assert adapter.context().group is world


def test_a_deep_copied_adapter_shares_its_trainer_and_group() -> None:
    with fake_world(1, 4):
        group = dist.new_group([1, 3])
        trainer = FakeTrainer(1, 4)
        adapter = copy.deepcopy(LightningAdapter(trainer, group=group))
        assert adapter._trainer is trainer
        assert adapter.context().group is group


def test_a_pickled_subgroup_is_found_again_only_as_the_same_ranks() -> None:
    with fake_world(1, 2) as world:
        whole = pickle.dumps(Holder(FakeTrainer(1, 2), group=world))
        part = pickle.dumps(Holder(FakeTrainer(1, 2), group=dist.new_group([1])))
        assert pickle.loads(whole).adapter.context().size == 2
        with pytest.raises(ContextError, match=r"group of ranks \[1\]"):
            pickle.loads(part).adapter.context()


def test_a_pickled_mesh_axis_needs_its_trainer() -> None:
    data = pickle.dumps(LightningAdapter(FakeTrainer(), mesh_axis="dp"))
    with fake_world(1, 2), pytest.raises(ContextError, match="got no Trainer or Fabric"):
        pickle.loads(data).context()


# -- with an Exchange, on ranks ----------------------------------------------------------------


def from_left(exchange: Exchange) -> float:
    return exchange.shift(torch.tensor([float(exchange.rank)])).item()


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_copies_of_a_trained_module_exchange_like_the_original(
    namespace: str, rank: int, world_size: int
) -> None:
    module = ring_class(namespace)()
    run = trainer(namespace, devices=world_size)
    run.fit(module, loader(), loader())
    left = (rank - 1) % world_size
    assert from_left(module.exchange) == left
    copied = copy.deepcopy(module)
    assert copied.exchange is not module.exchange
    assert from_left(copied.exchange) == left
    pickled = pickle.loads(pickle.dumps(Exchange(Ring, LightningAdapter(run), name="ring")))
    assert from_left(pickled) == left


@pytest.mark.ranks(1, 2, 3)
def test_a_trained_module_is_saved_whole_and_exchanges_when_it_is_loaded(
    rank: int, world_size: int
) -> None:
    from tests.support.saved import SavedModule

    module = SavedModule()
    trainer("lightning.pytorch", devices=world_size).fit(module, loader(), loader())
    buffer = io.BytesIO()
    torch.save(module, buffer)
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    assert torch.equal(loaded.layer.weight, module.layer.weight)
    assert from_left(loaded.exchange) == (rank - 1) % world_size


@pytest.mark.ranks(2)
def test_a_loaded_module_does_not_exchange_with_itself_where_no_group_is() -> None:
    from tests.support.saved import SavedModule

    module = SavedModule()
    trainer("lightning.pytorch").fit(module, loader(), loader())
    buffer = io.BytesIO()
    torch.save(module, buffer)
    dist.barrier()
    dist.destroy_process_group()
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    with pytest.raises(ContextError, match="no Trainer"):
        from_left(loaded.exchange)


@pytest.mark.ranks(2)
def test_a_context_is_deep_copied_as_it_is_and_not_pickled(rank: int) -> None:
    context = RawDDPAdapter().context()
    assert copy.deepcopy(context) is context
    with pytest.raises(ContextError, match=rf"rank {rank} of 2.*keep the adapter"):
        pickle.dumps(context)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_training_resumes_from_a_checkpoint(namespace: str, rank: int, tmp_path: Path) -> None:
    kind = ring_class(namespace)
    whole = kind()
    trainer(namespace, max_epochs=2).fit(whole, loader(), loader())
    first = kind()
    run = trainer(namespace, max_epochs=1)
    run.fit(first, loader(), loader())
    run.save_checkpoint(tmp_path / "half.ckpt")
    second = kind()
    rest = trainer(namespace, max_epochs=2)
    rest.fit(second, loader(), loader(), ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(second.layer.weight, whole.layer.weight)
    assert not torch.equal(first.layer.weight, whole.layer.weight)
    assert from_left(second.exchange) == (rank - 1) % 2


@pytest.mark.ranks(2)
def test_weight_averaging_works_over_two_fits(rank: int) -> None:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    module = ring_class("lightning.pytorch")()
    for _ in range(2):
        run = trainer("lightning.pytorch", callbacks=[EMAWeightAveraging()])
        run.fit(module, loader(), loader())
    assert from_left(module.exchange) == (rank - 1) % 2
