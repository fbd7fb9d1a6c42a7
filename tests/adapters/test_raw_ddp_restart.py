"""RawDDPAdapter: a job that starts again, in the same processes or in others."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from adapters.raw_ddp import RawDDPAdapter
from collectives.errors import ContextError
from collectives.testing.pool import RANK, RankPool
from collectives.testing.wire import OnRank
from tests.support.starts import join, launched


@pytest.mark.ranks(2, backend=None)
def test_a_job_starts_again_at_the_same_port_and_within_itself(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, 2, port)
    for _ in range(5):
        join(timeout=20)
        assert not dist.is_initialized()
    with RawDDPAdapter(device="cpu", timeout=20) as outer, RawDDPAdapter() as inner:
        assert inner.context().group is outer.context().group


@pytest.mark.ranks(2, backend=None)
def test_a_start_that_failed_on_one_rank_does_not_part_it_from_the_others(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's counter of groups, from which their names are made, is then ahead on that rank."""
    launched(monkeypatch, rank, 2, port)
    if rank == 1:
        with pytest.raises(ValueError, match="device_id"):
            dist.init_process_group(
                "gloo", store=HashStore(), rank=0, world_size=1, device_id=torch.device("cpu")
            )
    join(timeout=20)


def attempt(
    rank: int, monkeypatch: pytest.MonkeyPatch, port: int, number: int, late: int, timeout: float
) -> str:
    launched(
        monkeypatch,
        rank,
        2,
        port,
        TORCHELASTIC_RESTART_COUNT=number,
        TORCHELASTIC_USE_AGENT_STORE=True,
    )
    if rank == late:
        time.sleep(0.5)
    try:
        join(timeout)
    except ContextError as error:
        return str(error)
    return "joined"


def attempt_as_counted(
    rank: int, monkeypatch: pytest.MonkeyPatch, port: int, counts: tuple[int, int]
) -> str:
    return attempt(rank, monkeypatch, port, counts[rank], -1, 20.0)


def crashed_before_joining(
    rank: int, monkeypatch: pytest.MonkeyPatch, port: int, timeout: float
) -> str:
    return "crashed" if rank == 1 else attempt(rank, monkeypatch, port, 0, -1, timeout)


@pytest.mark.parametrize("late", [0, 1])
def test_an_attempt_of_torchrun_does_not_read_what_the_one_before_has_left(
    late: int, agent: int, rank_pool: RankPool
) -> None:
    """pytorch/pytorch#135712, #167288: the store keeps gloo's addresses of attempt 0."""

    def run(number: int) -> list[str]:
        rank_pool.discard()
        return rank_pool.run(
            attempt, RANK, OnRank.MONKEYPATCH, agent, number, late, 20.0, size=2, backend=None
        )

    assert run(0) == ["joined", "joined"]
    assert run(1) == ["joined", "joined"]
    assert run(1) == ["joined", "joined"]  # other processes, and no agent here has counted it


@pytest.mark.parametrize("later", [0, 1])
def test_hosts_that_count_restarts_differently_meet(
    later: int, agent: int, rank_pool: RankPool
) -> None:
    """An agent counts the failures of its own workers; the other one only hears of them."""

    def run(counts: tuple[int, int]) -> list[str]:
        rank_pool.discard()
        return rank_pool.run(
            attempt_as_counted, RANK, OnRank.MONKEYPATCH, agent, counts, size=2, backend=None
        )

    assert run((0, 0)) == ["joined", "joined"]
    assert run((0, 1) if later else (1, 0)) == ["joined", "joined"]
    assert run((1, 1)) == ["joined", "joined"]


def test_a_rank_that_crashed_before_it_joined_is_no_obstacle_to_the_next_attempt(
    agent: int, rank_pool: RankPool
) -> None:
    first = rank_pool.run(
        crashed_before_joining, RANK, OnRank.MONKEYPATCH, agent, 1.5, size=2, backend=None
    )
    assert "rank 1 did not come" in first[0]
    rank_pool.discard()
    again = rank_pool.run(
        attempt, RANK, OnRank.MONKEYPATCH, agent, 1, 1, 20.0, size=2, backend=None
    )
    assert again == ["joined", "joined"]
