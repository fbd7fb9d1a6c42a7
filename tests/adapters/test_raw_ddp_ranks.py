"""RawDDPAdapter on several ranks: how they meet, and how they part."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from adapters import raw_ddp
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ContextError, PeerLost

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


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
def test_srun_on_several_hosts_meets_on_the_first_one(
    rank: int, free_slurm_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env(
        monkeypatch,
        SLURM_JOB_ID=0,
        SLURM_STEP_ID=free_slurm_step,
        SLURM_PROCID=rank,
        SLURM_LOCALID=0,
        SLURM_NODEID=rank,
        SLURM_STEP_NUM_TASKS=2,
        SLURM_STEP_NUM_NODES=2,
        SLURM_STEP_NODELIST="localhost,elsewhere",
    )
    with RawDDPAdapter(device="cpu", timeout=20) as adapter:
        context = adapter.context()
        assert (context.rank, context.local_rank, context.node_rank) == (rank, 0, rank)
        assert everyone_is_here(2)


@pytest.fixture
def free_slurm_step() -> int:
    """A step number from which a port follows that is free."""
    for step in range(1, 17_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", 15_000 + step))
            return step
    pytest.skip("no free port")


@pytest.mark.ranks(2, backend=None)
def test_a_rank_that_does_not_come_is_an_error_in_time(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if rank == 0:
        with (
            pytest.raises(
                ContextError,
                match=r"rank 1 did not come within 0\.\d+ s: 1 of 2 came \(rank 0 of 2",
            ),
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


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_a_rank_whose_peer_left_early_is_told_at_the_end_of_the_block(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning-AI/pytorch-lightning#19931: destroying a group that others still use."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    adapter = RawDDPAdapter(rank=rank, size=2, device="cpu", timeout=20)
    if rank == 1:
        with pytest.raises(ZeroDivisionError), adapter:
            _ = 1 / 0
        dist.destroy_process_group()
    else:
        with pytest.raises(PeerLost, match=r"ended or failed before \(says rank 0 of 2\)"), adapter:
            assert adapter.context().size == 2


@pytest.mark.ranks(2, 3, 5, backend=None, fresh=True)
def test_ranks_at_the_end_of_their_blocks_are_known_to_one_that_goes_on(
    rank: int, world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def program() -> None:
        with RawDDPAdapter(rank=rank, size=world_size, device="cpu", timeout=30) as adapter:
            exchange = Exchange(Ring, adapter, timeout=20.0)
            exchange.shift(torch.ones(1))
            if rank == world_size - 1:
                exchange.shift(torch.ones(1))

    with pytest.raises(PeerLost, match=r"is at the end of its block after 1 exchanges"):
        program()
