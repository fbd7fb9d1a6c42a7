"""RawDDPAdapter: launchers' variables, existing groups, and what it leaves behind."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from adapters import raw_ddp
from adapters.raw_ddp import RawDDPAdapter
from collectives.errors import ArgumentError, ContextError
from tests.support.runtimes import fake_world

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


# -- one process -------------------------------------------------------------------------------


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


# -- ranks -------------------------------------------------------------------------------------


def everyone_is_here(world_size: int) -> bool:
    one = torch.ones(1)
    dist.all_reduce(one)
    return int(one) == world_size


def env(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.ranks(1, backend=None)
def test_a_launched_single_process_gets_a_group_of_one_without_a_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with RawDDPAdapter(device="cpu") as adapter:
        assert adapter.context().size == 1
        assert adapter.context().group is dist.group.WORLD
        DistributedDataParallel(torch.nn.Linear(1, 1))
    assert not dist.is_initialized()


@pytest.mark.ranks(1, 2, 3, backend=None)
def test_mpirun_on_one_host_needs_no_address_and_no_port(
    rank: int, world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env(
        monkeypatch,
        OMPI_COMM_WORLD_RANK=rank,
        OMPI_COMM_WORLD_SIZE=world_size,
        OMPI_COMM_WORLD_LOCAL_RANK=rank,
        OMPI_COMM_WORLD_LOCAL_SIZE=world_size,
        PMIX_NAMESPACE="job@1",
        RANK="",
        WORLD_SIZE="",
    )
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    for _ in range(2):
        with RawDDPAdapter(device="cpu", timeout=20) as adapter:
            context = adapter.context()
            assert (context.rank, context.size, context.local_rank) == (rank, world_size, rank)
            assert everyone_is_here(world_size)
        assert not dist.is_initialized()
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.ranks(2, backend=None)
def test_srun_on_one_host_needs_no_address(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env(
        monkeypatch,
        SLURM_JOB_ID=17,
        SLURM_STEP_ID=0,
        SLURM_PROCID=rank,
        SLURM_LOCALID=rank,
        SLURM_STEP_NUM_TASKS=2,
        SLURM_STEP_NUM_NODES=1,
    )
    with RawDDPAdapter(device="cpu", timeout=20) as adapter:
        assert (adapter.context().rank, adapter.context().size) == (rank, 2)
        assert everyone_is_here(2)


@pytest.mark.ranks(2, backend=None)
def test_a_spawned_function_gives_rank_and_size(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RawDDPAdapter(rank=rank, size=2, device="cpu", timeout=20) as adapter:
        assert (adapter.context().rank, adapter.context().local_rank) == (rank, rank)
        assert everyone_is_here(2)


@pytest.mark.ranks(2, backend=None)
def test_a_rank_that_does_not_come_is_an_error_in_time(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if rank == 0:
        with (
            pytest.raises(ContextError, match=r"did not all meet within 0\.2 s \(rank 0 of 2\)"),
            RawDDPAdapter(rank=0, size=2, device="cpu", timeout=0.2),
        ):
            pytest.fail("met nobody")


@pytest.mark.ranks(2)
def test_the_group_of_the_runtime_survives_the_block(rank: int) -> None:
    with RawDDPAdapter() as adapter:
        assert (adapter.context().rank, adapter.context().size) == (rank, 2)
        assert adapter.context().device == torch.device("cpu")
    assert everyone_is_here(2)


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_a_model_that_outlives_the_block_does_not_hang_the_exit(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch/pytorch#56297: the last owner of a gloo group deadlocks in its destructor."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RawDDPAdapter(rank=rank, size=2, device="cpu", timeout=20):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
    assert not dist.is_initialized()
    assert len(raw_ddp._ended) == 1  # what keeps the group's destructor from running here
    del model


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_after_an_error_the_group_stays_for_the_process_to_end(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(ZeroDivisionError),
        RawDDPAdapter(rank=rank, size=2, device="cpu", timeout=20),
    ):
        _ = 1 / 0
    assert dist.is_initialized()
    assert everyone_is_here(2)
