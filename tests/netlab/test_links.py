"""Exchanges between hosts, over cables that lose packets, or are cut for a while or for ever."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .exchanging import pass_around
from .hosts import End, Hosts, HostsError
from .job import Job, Report

MakeHosts = Callable[[int], Hosts]

DEADLINE = 4.0
STOP = 3.0  # seconds beyond the deadline, where the store cannot be reached
SLACK = 2.5  # seconds for a busy machine


def failures(reports: list[Report]) -> list[str]:
    return [f"{report.error}: {report.text}" for report in reports if report.error]


def check_stopped(reports: list[Report]) -> None:
    """Every rank stopped in time, and nobody before the deadline had passed for somebody."""
    for rank, report in enumerate(reports):
        assert report.error in ("ExchangeTimeout", "PeerLost"), report
        assert f"(rank {rank} of {len(reports)})" in report.text
        assert report.elapsed < DEADLINE + STOP + SLACK, report
    assert max(report.elapsed for report in reports) > DEADLINE - 0.1


def neighbour_missed(reports: list[Report]) -> bool:
    return any("got no answer from rank" in report.text for report in reports)


def test_one_percent_of_packets_lost_costs_time_and_nothing_else(
    make_hosts: MakeHosts, tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    program = functools.partial(pass_around, deadline=20.0, count=16_384, before=2, after=150)
    with Job(hosts, 2, program, tmp_path) as job:

        def lose() -> None:
            try:
                hosts.lose(0, 0.01)
                hosts.lose(1, 0.01)
            except HostsError as error:
                pytest.skip(f"no packets can be lost here: {error}")

        job.open_gate(lose)
        assert not failures(job.reports())
    assert hosts.lost(0) + hosts.lost(1) > 0


def test_a_cable_that_is_cut_for_5_s_is_no_error_before_the_deadline(
    make_hosts: MakeHosts, tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    program = functools.partial(pass_around, deadline=20.0, count=262_144, before=2, after=10)
    with Job(hosts, 2, program, tmp_path) as job:
        job.open_gate(lambda: hosts.cut(1))
        time.sleep(5.0)  # how long it stays cut
        hosts.mend(1)
        reports = job.reports()
    assert not failures(reports)
    assert all(report.longest > 4.0 for report in reports), reports


@pytest.mark.parametrize("end", ["switch", "host"])
def test_a_cable_that_stays_cut_is_an_error_at_the_deadline_on_both_sides(
    make_hosts: MakeHosts, tmp_path: Path, end: End
) -> None:
    hosts = make_hosts(2)
    program = functools.partial(pass_around, deadline=DEADLINE, count=1000, before=2, after=2)
    with Job(hosts, 2, program, tmp_path) as job:
        job.open_gate(lambda: hosts.cut(1, end))
        reports = job.reports()
    check_stopped(reports)
    assert neighbour_missed(reports[:2]), reports
    assert neighbour_missed(reports[2:]), reports


def test_four_hosts_exchange_until_the_one_with_the_store_is_cut_off(
    make_hosts: MakeHosts, tmp_path: Path
) -> None:
    hosts = make_hosts(4)
    program = functools.partial(pass_around, deadline=DEADLINE, count=1000, before=20, after=10)
    with Job(hosts, 1, program, tmp_path) as job:
        job.open_gate(lambda: hosts.cut(0))
        reports = job.reports()
    check_stopped(reports)
    assert neighbour_missed(reports), reports
