"""RawDDPAdapter: launchers' variables, existing groups, and what it leaves behind."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ArgumentError, ContextError
from tests.support.runtimes import fake_world

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_process_that_nobody_launched_is_alone_and_gets_no_group() -> None:
    with RawDDPAdapter() as adapter:
        context = adapter.context()
        assert (context.rank, context.size, context.group) == (0, 1, None)
        assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "1"}, "RANK=1 is set, WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "WORLD_SIZE=2 is set, RANK is not"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 is set, RANK and WORLD_SIZE are not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK: expected a number, got '-1'"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE: expected a number, got 'two'"),
    ],
)
def test_incomplete_variables_are_named_and_local_rank_is_never_the_rank(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ContextError, match=expected):
        RawDDPAdapter().context()
    with pytest.raises(ContextError, match=expected), RawDDPAdapter():
        pytest.fail("joined a job without a rank")
    assert RawDDPAdapter(alone=True).context().size == 1


def test_without_an_address_processes_on_several_hosts_are_told_to_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContextError, match="MASTER_ADDR and MASTER_PORT"), RawDDPAdapter():
        pytest.fail("joined nobody")


@pytest.mark.parametrize("port", ["", "http", "0", "65536", "-1"])
def test_a_port_that_is_none_is_refused_at_once(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", port)
    with (
        pytest.raises(ContextError, match=f"MASTER_PORT: expected a number.*, got '{port}'"),
        RawDDPAdapter(rank=1, size=2),
    ):
        pytest.fail("joined at no port")


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", "carrier-pigeon"])
def test_a_backend_that_torch_was_built_without_is_refused_before_anybody_waits(
    backend: str,
) -> None:
    if "nccl" in backend and dist.is_nccl_available():
        pytest.skip("this torch has NCCL")
    with (
        pytest.raises(ContextError, match=r"backend=.*was built with,.*gloo.*leave backend= out"),
        RawDDPAdapter(rank=0, size=2, backend=backend, device="cpu"),
    ):
        pytest.fail("joined without a backend")


def test_used_before_the_group_is_made_it_says_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ContextError, match=r"torchrun started 2.*with RawDDPAdapter\(\)"):
        RawDDPAdapter().context()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ContextError, match=r"rank 1 of 2.*with RawDDPAdapter\(\)"):
        RawDDPAdapter(rank=1, size=2).context()


def test_an_existing_group_is_used_and_left_alone() -> None:
    with fake_world(3, 8) as world:
        with RawDDPAdapter() as adapter:
            context = adapter.context()
            assert (context.rank, context.size, context.group) == (3, 8, world)
            assert context.local_rank == 3
        assert dist.is_initialized()


def test_a_rank_that_contradicts_the_existing_group_is_refused() -> None:
    with fake_world(1, 2), pytest.raises(ContextError, match="disagree"):
        RawDDPAdapter(rank=0, size=2).context()


def test_after_the_group_is_destroyed_nothing_becomes_local_in_silence() -> None:
    adapter = RawDDPAdapter()
    with fake_world(1, 2):
        assert adapter.context().size == 2
    with pytest.raises(ContextError, match=r"group of 2 ranks was destroyed.*alone=True"):
        adapter.context()
    with fake_world(0, 3):
        assert adapter.context().size == 3


def test_alone_exchanges_with_nobody_beside_a_group() -> None:
    with fake_world(1, 2):
        context = RawDDPAdapter(alone=True).context()
        assert (context.rank, context.size, context.group) == (0, 1, None)


def test_a_subgroup_gives_its_own_rank_and_size() -> None:
    with fake_world(5, 8):
        context = RawDDPAdapter(dist.new_group([1, 5])).context()
        assert (context.rank, context.size, context.local_rank) == (1, 2, 5)


def test_a_pickled_adapter_is_the_same_in_the_same_process() -> None:
    adapter = pickle.loads(pickle.dumps(RawDDPAdapter()))
    assert adapter.context().size == 1
    with fake_world(1, 2) as world:
        assert adapter.context().group is world


def test_a_pickled_adapter_in_another_process_needs_a_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pickle.dumps(RawDDPAdapter())
    monkeypatch.setattr("os.getpid", lambda: -1)
    adapter = pickle.loads(data)
    with pytest.raises(ContextError, match="pickled in another process"):
        adapter.context()
    with fake_world(1, 2):
        assert adapter.context().size == 2


def test_a_pickled_subgroup_is_not_replaced_by_the_whole_world() -> None:
    with fake_world(1, 4):
        everyone = pickle.dumps(RawDDPAdapter(dist.new_group([0, 1, 2, 3])))
        some = pickle.dumps(RawDDPAdapter(dist.new_group([1, 3])))
    with pytest.raises(ContextError, match=r"ranks \[1, 3\].*got none"):
        pickle.loads(some).context()
    with fake_world(1, 4):
        assert pickle.loads(everyone).context().size == 4
        with pytest.raises(ContextError, match=r"ranks \[1, 3\].*got \[0, 1, 2, 3\]"):
            pickle.loads(some).context()


def test_a_deep_copy_uses_the_same_subgroup() -> None:
    with fake_world(1, 4):
        group = dist.new_group([1, 3])
        assert copy.deepcopy(RawDDPAdapter(group)).context().group is group


@pytest.mark.parametrize(
    "options",
    [
        {"group": [0, 1]},
        {"group": 3},
        {"rank": 1},
        {"rank": 2, "size": 2},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"device": "gpu"},
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        RawDDPAdapter(**options)  # type: ignore[arg-type]


def test_a_group_and_alone_contradict_each_other() -> None:
    with fake_world(0, 2) as world, pytest.raises(ArgumentError, match="one of group="):
        RawDDPAdapter(world, alone=True)


class Exchanges(Dataset[str]):
    """Exchanges where its items are made, over an Exchange that worked before."""

    def __init__(self) -> None:
        self.exchange = Exchange(Ring, RawDDPAdapter())
        self.exchange.shift(torch.ones(1))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        try:
            self.exchange.shift(torch.ones(1))
        except ContextError as error:
            return str(error)
        return "exchanged with itself"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_exchange_that_worked_is_refused_in_a_dataloader_worker(method: str) -> None:
    loader = DataLoader(Exchanges(), batch_size=None, num_workers=1, multiprocessing_context=method)
    (answer,) = loader
    assert "in a DataLoader worker" in answer
