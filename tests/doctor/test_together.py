"""All ranks in one report, on real ranks: whoever fails, rank 0 knows in time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import pytest

from collectives.doctor import together
from collectives.doctor.looking import look
from collectives.doctor.rank import RankReport
from collectives.doctor.together import Job, meet
from collectives.doctor.wording import rank_facts
from collectives.errors import ContextError
from collectives.launcher import find_launch
from collectives.testing.pool import RANK, RankPool

ABSENT = "ABSENT"
Outcome = tuple[list[tuple[str, tuple[int, ...]]], list[str], float]
"""Findings with their ranks, how the exchanges of all ranks went, and seconds."""


def report(rank: int, port: int, of_rank: Mapping[int, dict[str, str]], seconds: float) -> Outcome:
    """Be one rank of a job."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ.update(of_rank.get(rank, {}))
    if ABSENT in os.environ:
        return [], [], 0.0
    together._MORE = min(together._MORE, seconds)
    launch = find_launch(os.environ)
    assert launch is not None
    mine = RankReport(rank, rank_facts(look(os.environ)))
    job = Job(launch, mine)
    begun = time.monotonic()
    try:
        meet(launch, job, mine, seconds=seconds, tell=lambda *_: None)
    except ContextError as error:
        job.trouble = str(error)
    took = time.monotonic() - begun
    print(*job.findings(), sep="\n")  # shown where a test fails
    found = [(finding.title, finding.ranks) for finding in job.findings()]
    trials = [one.trial.error[:20] if one.trial else "none" for one in job.reports.values()]
    return found, trials, took


class Reported:
    def __init__(self, pool: RankPool, port: int) -> None:
        self.pool, self.port = pool, port

    def __call__(
        self, of_rank: Mapping[int, dict[str, str]], seconds: float = 20.0
    ) -> list[Outcome]:
        arguments = (RANK, self.port, of_rank, seconds)
        results = self.pool.run(report, *arguments, size=2, backend=None, timeout=60)
        self.pool.discard()  # its ranks have groups that nobody destroys
        return results


@pytest.fixture
def reported(rank_pool: RankPool, port: int) -> Reported:
    return Reported(rank_pool, port)


def test_a_job_in_which_all_is_well_has_nothing_to_report(reported: Reported) -> None:
    found, trials, _ = reported({})[0]
    assert (found, trials) == ([], ["", ""])


def test_a_rank_with_a_wrong_interface_is_known_to_rank_0_by_name(reported: Reported) -> None:
    found, trials, took = reported({1: {"GLOO_SOCKET_IFNAME": "eth99"}})[0]
    title = "the ranks cannot exchange: GLOO_SOCKET_IFNAME is no interface with an address"
    assert found == [(title, (0, 1))]
    assert all(trial.startswith("ContextError") for trial in trials)
    assert took < 15


def test_ranks_that_disagree_on_the_size_are_told(reported: Reported) -> None:
    found, _, _ = reported({1: {"WORLD_SIZE": "3"}})[0]
    assert [title for title, _ in found] == [
        "the ranks differ in size: 2 on rank 0; 3 on rank 1",
        "the ranks cannot exchange: the ranks disagree on what this job is",
    ], found


def test_a_rank_that_does_not_come_is_told_in_time(reported: Reported) -> None:
    found, _, took = reported({1: {ABSENT: "1"}}, seconds=0.8)[0]
    assert found == [("rank 1 of 2 did not report", ())]
    assert took < 15


def test_a_rank_that_cannot_reach_rank_0_says_so_itself(reported: Reported) -> None:
    results = reported({1: {"MASTER_PORT": "9"}}, seconds=0.8)
    assert results[0][0] == [("rank 1 of 2 did not report", ())]
    assert results[1][0] == [("the ranks cannot meet: rank 0 cannot be reached", ())]
