"""LightningAdapter under stand-ins and under real Trainers on ranks.

What Trainers say in each runtime: Lightning-AI/pytorch-lightning#6318, #19331, #20632.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _world

from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring
from collectives.errors import ArgumentError, ContextError, ExchangeMismatch
from tests.support.probe import NAMESPACES, fabric, loader, probe_class, trainer
from tests.support.runtimes import (
    FakeFabric,
    FakeFitLoop,
    FakeModule,
    FakeStrategy,
    FakeTrainer,
    fake_world,
)

HOOKS = ["setup", "configure_optimizers", "training_step", "validation_step", "teardown"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


# -- one process, stand-ins --------------------------------------------------------------------


def test_a_trainer_with_one_device_and_no_group_is_alone() -> None:
    context = LightningAdapter(FakeModule(FakeTrainer())).context()
    assert (context.rank, context.size, context.group) == (0, 1, None)
    assert context.source == "Trainer"


def test_rank_size_and_place_are_the_trainers() -> None:
    trainer = FakeTrainer(global_rank=3, world_size=8, local_rank=1, node_rank=1)
    with fake_world(3, 8) as world:
        for adapter in (LightningAdapter(trainer), LightningAdapter(FakeModule(trainer))):
            context = adapter.context()
            assert (context.rank, context.size, context.group) == (3, 8, world)
            assert (context.local_rank, context.node_rank) == (1, 1)


def test_the_device_is_the_strategys_and_not_the_modules() -> None:
    """``module.device`` is the CPU again in ``teardown``."""
    strategy = FakeStrategy(root_device=torch.device("cuda", 3))
    module = FakeModule(FakeTrainer(strategy=strategy))
    assert LightningAdapter(module).context().device == torch.device("cuda", 3)


def test_fabric_comes_before_the_trainer_because_the_module_says_rank_0_there() -> None:
    module = FakeModule(FakeTrainer(), fabric=FakeFabric(global_rank=1, world_size=2))
    with fake_world(1, 2):
        context = LightningAdapter(module).context()
        assert (context.rank, context.size, context.source) == (1, 2, "Fabric")


def test_a_module_without_trainer_says_when_to_exchange_and_how_to_test() -> None:
    """Lightning-AI/pytorch-lightning#15734, #20632: asking in ``__init__``."""
    with pytest.raises(ContextError, match=r"setup\(\) or later.*unit test.*alone=True"):
        LightningAdapter(FakeModule()).context()
    assert LightningAdapter(FakeModule(), alone=True).context().size == 1


def test_a_module_without_trainer_binds_to_the_default_group_if_there_is_one() -> None:
    with fake_world(1, 2) as world:
        context = LightningAdapter(FakeModule()).context()
        assert (context.rank, context.size, context.group) == (1, 2, world)
        assert context.device == torch.device("cpu")


def test_before_the_processes_are_up_it_is_too_early() -> None:
    trainer = FakeTrainer(global_rank=1, world_size=2)
    with pytest.raises(ContextError, match=r"Trainer runs 2 processes.*in setup\(\) or later"):
        LightningAdapter(trainer).context()


def test_a_trainer_that_ignores_the_group_is_named_with_both_pairs() -> None:
    with fake_world(1, 2), pytest.raises(ContextError, match=r"rank 0 of 1.*rank 1 of 2"):
        LightningAdapter(FakeTrainer()).context()


def test_torchrun_with_one_device_is_not_two_silent_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContextError, match=r"torchrun started 2 processes.*devices="):
        LightningAdapter(FakeTrainer()).context()
    assert LightningAdapter(FakeTrainer(), alone=True).context().alone


def test_a_mesh_that_is_not_made_yet_waits_for_the_processes() -> None:
    class EarlyStrategy(FakeStrategy):
        def __getattribute__(self, name: str) -> Any:
            if name == "device_mesh":
                raise RuntimeError("Accessing the device mesh before processes have initialized")
            return super().__getattribute__(name)

    trainer = FakeTrainer(world_size=4, strategy=EarlyStrategy())
    with pytest.raises(ContextError, match="no process group"):
        LightningAdapter(trainer, mesh_axis="data_parallel").context()


def test_a_mesh_axis_without_a_mesh_is_refused() -> None:
    with fake_world(0, 2), pytest.raises(ContextError, match=r"device mesh, got FakeStrategy"):
        LightningAdapter(FakeTrainer(world_size=2), mesh_axis="dp").context()


def test_the_step_is_the_trainers() -> None:
    trainer = FakeTrainer(current_epoch=2, global_step=17, fit_loop=FakeFitLoop(3))
    assert LightningAdapter(trainer).step() == (2, 17, 3)
    assert LightningAdapter(FakeModule(trainer)).step() == (2, 17, 3)
    assert LightningAdapter(FakeModule()).step() == ()
    assert LightningAdapter(FakeModule(trainer, fabric=FakeFabric())).step() == ()


@pytest.mark.ranks(2, fresh=True)
def test_a_rank_that_leaves_out_a_batch_is_found_by_the_trainers_step(rank: int) -> None:
    trainer = FakeTrainer(global_rank=rank, world_size=2)
    exchange = Exchange(Ring, LightningAdapter(trainer), timeout=10)

    def epoch() -> None:
        for trainer.fit_loop.batch_idx in range(2):
            if (trainer.fit_loop.batch_idx, rank) != (0, 1):
                exchange.shift(torch.zeros(1))

    with pytest.raises(ExchangeMismatch, match=r"step: \(0, 0, [01]\) / \(0, 0, [01]\)"):
        epoch()


@pytest.mark.parametrize(
    "wrong", [3, None, "trainer", FakeTrainer, FakeFabric(), torch.nn.Linear(1, 1), torch.nn.Module]
)
def test_a_wrong_object_is_refused_at_construction(wrong: object) -> None:
    with pytest.raises(ArgumentError, match="expected a LightningModule or a Trainer, got"):
        LightningAdapter(wrong)  # type: ignore[arg-type]


def test_group_and_mesh_axis_contradict_each_other() -> None:
    with fake_world(0, 2) as world, pytest.raises(ArgumentError, match="mesh_axis='dp'"):
        LightningAdapter(FakeTrainer(), group=world, mesh_axis="dp")


# -- real Trainers -----------------------------------------------------------------------------


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_one_device_needs_no_group_in_any_hook(namespace: str) -> None:
    module: Any = probe_class(namespace)()
    trainer(namespace, devices=1, strategy="auto").fit(module, loader(), loader())
    assert not dist.is_initialized()
    assert list(module.found) == HOOKS
    assert {(c.rank, c.size, c.group) for c in module.found.values()} == {(0, 1, None)}


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_ddp_is_right_in_every_hook_and_both_lightnings(
    namespace: str, rank: int, world_size: int
) -> None:
    module: Any = probe_class(namespace)()
    with_ddp = trainer(namespace, devices=world_size)
    with_ddp.fit(module, loader(), loader())
    world = dist.group.WORLD
    assert list(module.found) == HOOKS
    for context in module.found.values():
        assert (context.rank, context.size, context.group) == (rank, world_size, world)
        assert context.device == torch.device("cpu")
    assert module.adapter.step() == (1, 2, 1)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.ranks(2)
def test_fit_and_three_tests_make_no_group() -> None:
    module: Any = probe_class("lightning.pytorch")()
    trainer("lightning.pytorch").fit(module, loader(), loader())
    groups, running = len(_world.pg_map), threads()
    for _ in range(3):
        trainer("lightning.pytorch").test(module, loader(), verbose=False)
    assert module.found["test_step"].size == 2
    assert len(_world.pg_map) == groups == 1
    assert threads() == running


@pytest.mark.ranks(2)
def test_a_trainer_that_is_not_told_of_the_group_is_refused(rank: int) -> None:
    module: Any = probe_class("lightning.pytorch")()
    with pytest.raises(ContextError, match=rf"rank 0 of 1.*rank {rank} of 2"):
        trainer("lightning.pytorch", devices=1, strategy="auto").fit(module, loader(), loader())


@pytest.mark.ranks(2)
def test_the_given_group_is_the_way_out_when_the_trainer_is_not_told(rank: int) -> None:
    module: Any = probe_class("lightning.pytorch")(group=dist.group.WORLD)
    trainer("lightning.pytorch", devices=1, strategy="auto").fit(module, loader(), loader())
    context = module.found["training_step"]
    assert (context.rank, context.size) == (rank, 2)


@pytest.mark.ranks(3)
def test_a_subgroup_of_a_trainers_ranks_has_its_own_numbers(rank: int) -> None:
    adapter = LightningAdapter(
        trainer("lightning.pytorch", devices=3), group=dist.new_group([0, 2])
    )
    if rank == 1:
        with pytest.raises(ContextError, match=r"not a member.*\(rank 1 of 3\)"):
            adapter.context()
    else:
        assert (adapter.context().rank, adapter.context().size) == (rank // 2, 2)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_lightning_module_under_fabric_has_its_real_rank(namespace: str, rank: int) -> None:
    module: Any = probe_class(namespace)()
    runtime = fabric(namespace)
    runtime.launch()
    runtime.setup(module, module.configure_optimizers())
    assert module.global_rank == 0  # which is why the adapter does not ask the module
    context = module.adapter.context()
    assert (context.rank, context.size, context.source) == (rank, 2, "Fabric")


@pytest.mark.ranks(4)
def test_a_device_mesh_asks_for_an_axis_and_gives_its_group(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
    strategy = FakeStrategy(device_mesh=mesh)
    trainer = FakeTrainer(rank, 4, rank, 0, strategy)
    with pytest.raises(ContextError, match=r"\['data_parallel', 'tensor_parallel'\]"):
        LightningAdapter(trainer).context()
    with pytest.raises(ContextError, match=r"mesh_axis='dp': expected one of"):
        LightningAdapter(trainer, mesh_axis="dp").context()
    for axis, expected in (("data_parallel", rank // 2), ("tensor_parallel", rank % 2)):
        context = LightningAdapter(trainer, mesh_axis=axis).context()
        assert (context.rank, context.size) == (expected, 2)
        assert context.group is mesh.get_group(axis)


@pytest.mark.ranks(2)
def test_a_mesh_with_one_real_axis_needs_no_choice(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    trainer = FakeTrainer(rank, 2, rank, 0, FakeStrategy(device_mesh=mesh))
    assert LightningAdapter(trainer).context().group is dist.group.WORLD
    context = LightningAdapter(trainer, mesh_axis="tensor_parallel").context()
    assert (context.rank, context.size) == (0, 1)
