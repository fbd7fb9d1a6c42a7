"""Which records belong together."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.record import FlightRecord, groups, jobs
from collectives.testing.pool import RankPool
from tests.support.records import NOON, done, record


def one(
    rank: int, run: str, *, group: str = "default", pid: int = 0, at: float = 0
) -> FlightRecord:
    made = record(rank, 4, [done(rank, 4, 1)], run=run, pid=pid or 100 + rank, written=NOON + at)
    return dataclasses.replace(made, group=group)


def names(found: list[list[FlightRecord]]) -> list[list[tuple[int, str]]]:
    return [sorted((r.rank, r.run) for r in of) for of in found]


def test_ranks_that_greeted_each_other_are_of_one_job() -> None:
    assert names(jobs([one(r, "a") for r in range(4)])) == [[(r, "a") for r in range(4)]]


def test_the_job_that_wrote_last_comes_first() -> None:
    first = [one(r, "a", pid=10 + r) for r in range(4)]
    second = [one(r, "b", pid=20 + r, at=50) for r in range(2)]
    assert [of[0][1] for of in names(jobs([*first, *second]))] == ["b", "a"]
    assert [of[0][1] for of in names(jobs([*second, *first]))] == ["b", "a"]


def test_a_process_ties_the_groups_that_it_is_in_to_one_job() -> None:
    sub = [one(0, "s", group="group-1", pid=101), one(1, "s", group="group-1", pid=103)]
    (job,) = jobs([*sub, *(one(r, "a") for r in range(4))])
    assert [(of[0].group, len(of)) for of in groups(job)] == [("default", 4), ("group-1", 2)]


def test_a_group_that_was_made_anew_is_not_mixed_with_the_one_before() -> None:
    before, after = [one(1, "a"), one(2, "a")], [one(1, "b", at=9), one(3, "b", pid=102, at=9)]
    (job,) = jobs([*before, *after])
    assert names(groups(job)) == [[(1, "b"), (3, "b")], [(1, "a"), (2, "a")]]


@pytest.mark.parametrize(("apart", "count"), [(30, 1), (3600, 2)])
def test_ranks_that_never_greeted_are_of_one_job_if_they_wrote_at_one_time(
    apart: float, count: int
) -> None:
    assert len(jobs([one(0, ""), one(1, "", at=apart)])) == count


def test_the_same_rank_again_is_another_job() -> None:
    assert len(jobs([one(0, "", pid=1), one(0, "", pid=2, at=5)])) == 2


def run_of_a_group() -> tuple[str, str]:
    exchange = Exchange(Ring, RawDDPAdapter())
    before = exchange.flight_record().run
    exchange.shift(torch.ones(1))
    return before, exchange.flight_record().run


def test_all_ranks_of_a_group_write_one_run_and_the_next_group_writes_another(
    rank_pool: RankPool,
) -> None:
    first, second = (rank_pool.run(run_of_a_group, size=3) for _ in range(2))
    assert {before for before, _ in [*first, *second]} == {""}
    (one_run,), (other_run,) = ({run for _, run in found} for found in (first, second))
    assert one_run
    assert other_run
    assert one_run != other_run
