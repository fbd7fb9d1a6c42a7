"""FabricAdapter under stand-ins and under real Fabrics on ranks.

Lightning-AI/pytorch-lightning#17546 and #16922: when Fabric's processes and group are there.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from adapters.fabric import FabricAdapter
from collectives.errors import ArgumentError, ContextError
from tests.support.probe import NAMESPACES, fabric
from tests.support.runtimes import FakeFabric, FakeModule, FakeStrategy, FakeTrainer, fake_world


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_one_device_needs_no_group() -> None:
    context = FabricAdapter(FakeFabric()).context()
    assert (context.rank, context.size, context.group, context.source) == (0, 1, None, "Fabric")


def test_rank_size_place_and_device_are_fabrics() -> None:
    strategy = FakeStrategy(root_device=torch.device("cuda", 1))
    with fake_world(3, 4) as world:
        context = FabricAdapter(FakeFabric(3, 4, 1, 1, strategy)).context()
        assert (context.rank, context.size, context.group) == (3, 4, world)
        assert (context.local_rank, context.node_rank) == (1, 1)
        assert context.device == torch.device("cuda", 1)


def test_before_launch_it_names_launch() -> None:
    with pytest.raises(ContextError, match=r"Fabric runs 2 processes.*fabric\.launch\(\)"):
        FabricAdapter(FakeFabric(1, 2)).context()


def test_torchrun_with_a_default_fabric_is_not_two_silent_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContextError, match=r"torchrun started 2.*give Fabric the devices="):
        FabricAdapter(FakeFabric()).context()
    assert FabricAdapter(FakeFabric(), alone=True).context().size == 1


@pytest.mark.parametrize(
    "wrong", [3, None, FakeFabric, FakeTrainer(), FakeModule(), torch.nn.Linear(1, 1)]
)
def test_a_wrong_object_is_refused_at_construction(wrong: object) -> None:
    with pytest.raises(ArgumentError, match="FabricAdapter: expected a Fabric, got"):
        FabricAdapter(wrong)  # type: ignore[arg-type]


def test_a_deep_copy_shares_the_fabric() -> None:
    runtime = FakeFabric()
    adapter = copy.deepcopy(FabricAdapter(runtime))
    runtime.global_rank, runtime.world_size = 1, 2
    with fake_world(1, 2):
        assert adapter.context().rank == 1


def test_a_pickled_adapter_has_no_fabric_and_is_never_local_in_silence() -> None:
    adapter = pickle.loads(pickle.dumps(FabricAdapter(FakeFabric())))
    with pytest.raises(ContextError, match=r"pickled.*new FabricAdapter\(fabric\)"):
        adapter.context()
    with fake_world(1, 2) as world:
        assert adapter.context().group is world


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_both_fabrics_are_bound_to_the_group_of_their_processes(
    namespace: str, rank: int, world_size: int
) -> None:
    runtime = fabric(namespace, devices=world_size)
    adapter = FabricAdapter(runtime)
    runtime.launch()
    context = adapter.context()
    assert (context.rank, context.size, context.group) == (rank, world_size, dist.group.WORLD)
    assert context.device == torch.device("cpu")


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_one_device_of_a_real_fabric_needs_no_group(namespace: str) -> None:
    runtime = fabric(namespace, devices=1, strategy="auto")
    adapter = FabricAdapter(runtime)
    assert adapter.context().size == 1
    runtime.launch()
    assert adapter.context().size == 1
    assert not dist.is_initialized()


@pytest.mark.ranks(4)
def test_an_axis_of_the_mesh_gives_its_group(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    runtime = FakeFabric(rank, 4, rank, 0, FakeStrategy(device_mesh=mesh))
    with pytest.raises(ContextError, match=r"\['rows', 'columns'\]"):
        FabricAdapter(runtime).context()
    context = FabricAdapter(runtime, mesh_axis="rows").context()
    assert (context.rank, context.size) == (rank // 2, 2)


@pytest.mark.ranks(2)
def test_a_copied_module_that_holds_an_adapter_of_fabric_works(rank: int) -> None:
    class Net(torch.nn.Module):
        def __init__(self, adapter: FabricAdapter) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.adapter = adapter

    runtime = fabric("lightning.pytorch")
    runtime.launch()
    net = Net(FabricAdapter(runtime))
    copied: Any = copy.deepcopy(net)
    assert (copied.adapter.context().rank, copied.adapter.context().size) == (rank, 2)
    sent: Any = pickle.loads(pickle.dumps(net.adapter))
    assert (sent.context().rank, sent.context().size) == (rank, 2)
