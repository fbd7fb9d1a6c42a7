"""The screen: problems first, with what to do, at any width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectives.doctor.checks import check
from collectives.doctor.findings import Finding, sorted_by_severity, without_echoes
from collectives.doctor.logs import read_log
from collectives.doctor.rank import RankReport, Trial
from collectives.doctor.screen import (
    findings_lines,
    log_lines,
    plain,
    ranks_lines,
    section_lines,
    summary,
)
from collectives.doctor.selftest import PairTest
from collectives.doctor.snapshot import Interface, Lookup, Port, Torch
from collectives.doctor.together import Job
from collectives.doctor.wording import duration, rank_facts, sections, selftest_section
from collectives.launcher import Launch
from tests.support.snapshots import HEALTHY, LO, TORCHRUN, with_environ

README = Path(__file__).parents[2] / "README.md"
ETH0 = Interface("eth0", ("10.0.0.7",))
PROBLEM = Finding(
    "problem", "MASTER_PORT=29500 is in use", "choose another", "EADDRINUSE.", ("a/b#1",)
)
WARNING = Finding("warning", "little memory", "use more")
GOOD = Trial("", 0.02, 0.0001, 0.0005)


def test_problems_come_before_warnings_and_an_error_that_comes_of_one_is_left_out() -> None:
    assert sorted_by_severity([WARNING, PROBLEM]) == [PROBLEM, WARNING]
    cause = Finding("problem", "no such interface", "change it", topic="gloo-interface")
    echo = Finding("problem", "cannot exchange", "change it", topic="gloo-interface")
    other = Finding("problem", "cannot exchange", "look", topic="")
    assert without_echoes([WARNING, cause], [echo, other]) == [cause, other, WARNING]


def test_variables_that_decide_how_and_where_ranks_meet_are_shown() -> None:
    environ = {"PET_NNODES": "2", "TMPDIR": "/scratch", "COLLECTIVES_STALL": "2", "HOME": "/root"}
    shown = sections(with_environ(environ))[-1]
    assert (shown.title, [name for name, _ in shown.rows]) == (
        "Variables",
        ["COLLECTIVES_STALL", "PET_NNODES", "TMPDIR"],
    )


def test_a_finding_says_what_is_wrong_what_to_do_and_where_it_was_reported() -> None:
    assert plain(findings_lines([PROBLEM], 80)).splitlines() == [
        "PROBLEM  MASTER_PORT=29500 is in use",
        "         EADDRINUSE.",
        "   do    Choose another",
        "   see   a/b#1",
    ]


def test_a_narrow_terminal_gets_the_same_words_under_one_another() -> None:
    assert plain(findings_lines([PROBLEM], 40)).splitlines() == [
        "PROBLEM",
        "  MASTER_PORT=29500 is in use",
        "  EADDRINUSE.",
        "do",
        "  Choose another",
        "see",
        "  a/b#1",
    ]


@pytest.mark.parametrize("width", [30, 44, 60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    found = with_environ({**TORCHRUN, "NCCL_DEBUG": "INFO"}, interfaces=(LO, *many_interfaces()))
    lines = [line for section in sections(found) for line in section_lines(section, width)]
    lines += findings_lines([PROBLEM, WARNING], width)
    lines += log_lines("train.log", read_log(["Connection closed by peer " + "x " * 99]), width)
    for line in plain(lines).splitlines():
        assert len(line) <= width or " " not in line.strip(), line


def many_interfaces() -> list[Interface]:
    return [Interface(f"eth{n}", (f"10.0.0.{n}",)) for n in range(12)]


def test_the_ranks_of_some_findings_are_named() -> None:
    some = Finding("problem", "no such interface", "change it", ranks=(1, 3))
    assert plain(findings_lines([some], 80, 4)).startswith(
        "PROBLEM  no such interface (ranks 1 and 3)"
    )
    assert "(rank" not in plain(findings_lines([some], 80, 2))


def test_the_summary_counts() -> None:
    assert plain([summary([PROBLEM, PROBLEM, WARNING], "fine")]) == "2 problems, 1 warning"
    assert plain([summary([WARNING], "All is well")]) == "All is well (1 warning)"
    assert plain([summary([], "All is well")]) == "All is well"


def test_all_ranks_are_in_one_table_with_those_that_did_not_report() -> None:
    facts = {**rank_facts(HEALTHY), "host": "gpu07"}
    reports = [
        RankReport(0, facts, (), GOOD),
        RankReport(1, facts, (), Trial(error="refused")),
        RankReport(3, facts, (), None),
    ]
    assert plain(ranks_lines(reports, [2], 80)).splitlines() == [
        "Ranks",
        "rank  host   device  gloo uses      exchange        4 B     1 MiB",
        "0     gpu07  cpu     eth0 10.0.0.1  ok              100 us  2.1 GB/s",
        "1     gpu07  cpu     eth0 10.0.0.1  failed",
        "2     ?                             did not report",
        "3     gpu07  cpu     eth0 10.0.0.1  did not end",
    ]


def test_ranks_that_could_not_meet_came_to_no_exchange() -> None:
    lone = RankReport(0, {**rank_facts(HEALTHY), "host": "gpu07"}, (), None)
    table = plain(ranks_lines([lone], [], 80, met=False))
    assert table.splitlines()[2] == "0     gpu07  cpu     eth0 10.0.0.1  did not meet"


def test_a_busy_host_is_told_beside_what_is_timed_there() -> None:
    def devices(load: float) -> dict[str, str]:
        return dict(sections(with_environ({}, host_cores=4, load=load))[1].rows)

    assert "host is busy" not in devices(4.9)
    assert devices(11.6)["host is busy"].startswith("12 processes want to run on 4: ")


def test_how_messages_go_among_ranks_of_one_host_is_told() -> None:
    def network(environ: dict[str, str], *, has_doors: bool) -> str:
        found = sections(with_environ(environ, has_doors=has_doors))
        return next(dict(part.rows) for part in found if part.title == "Network")["on one host"]

    assert network({}, has_doors=True) == (
        "CPU tensors go through Unix sockets and shared memory, not gloo"
    )
    assert network({}, has_doors=False).startswith("gloo too: this system has no")
    off = {"COLLECTIVES_SAME_HOST": "off"}
    assert network(off, has_doors=True) == "gloo too: COLLECTIVES_SAME_HOST=off"


def test_the_table_of_ranks_is_cut_to_a_narrow_terminal() -> None:
    facts = {**rank_facts(HEALTHY), "host": "gpu07.cluster.example.org"}
    lines = plain(ranks_lines([RankReport(0, facts, (), GOOD)], [], 60)).splitlines()
    assert max(map(len, lines)) <= 60
    assert "gpu07" in lines[2]
    assert "2.1 GB/s" in lines[2]


def test_what_decides_the_rank_is_told() -> None:
    environ = {**TORCHRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    met = {"master": Lookup("localhost", ("127.0.0.1",)), "port": Port("29500", "not tried")}
    rows = dict(sections(with_environ(environ, **met))[2].rows)
    assert rows == {
        "process": "rank 0 of 2, local rank 0, node 0",
        "decided by": "torchrun: RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0",
        "not heeded": "srun, which also say a rank",
        "meets at": "localhost:29500 (127.0.0.1): torchrun holds the store",
        "in Lightning": "Trainer(devices=2, num_nodes=1)",
    }


def test_gpus_and_their_links_are_counted() -> None:
    cuda = Torch("2.13.0+cu128", ("gloo", "nccl"), "12.8", "cuda", ("NVIDIA H200",) * 8)
    found = with_environ({}, torch=cuda, gpus=cuda.devices, links={"NV18": 28})
    devices = dict(sections(found)[1].rows)
    assert devices["cuda"] == "8 x NVIDIA H200"
    assert devices["links"].startswith("28 x NV18")
    assert rank_facts(found)["device id"] == "here/0:0"


def test_the_self_test_says_how_long_what_took() -> None:
    assert dict(selftest_section(PairTest(GOOD, 2.0)).rows)["speed"] == (
        "4 B in 100 us, 1 MiB in 500 us (2.1 GB/s)"
    )
    assert (
        dict(selftest_section(PairTest(Trial(error="no"), 2.0)).rows)["result"]
        == "failed: see above"
    )
    assert duration(0.0123) == "12 ms"


def test_the_readme_shows_what_the_doctor_prints() -> None:
    facts = {"host": "gpu07", "name": Lookup("gpu07", ("10.0.0.7",)), "interfaces": (LO, ETH0)}
    failed = Trial(error="ContextError: Unable to find address for: eth7")
    reports = []
    for rank in range(2):
        environ = {
            **TORCHRUN,
            "RANK": str(rank),
            **({"GLOO_SOCKET_IFNAME": "eth7"} if rank else {}),
        }
        snapshot = with_environ(environ, **facts)
        reports.append(RankReport(rank, rank_facts(snapshot), tuple(check(snapshot)), failed))
    job = Job(Launch("torchrun", 0, 2, 0, 0, one_host=True, job=""), reports[0])
    job.reports[1] = reports[1]
    found = job.findings()
    lines = [summary(found, ""), (), *findings_lines(found, 80, 2), *ranks_lines(reports, [], 80)]
    blocks = re.findall(r"```text\n(.*?)```", README.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if block.startswith("torch-collectives doctor"))
    assert shown.split("\n", 1)[1].strip() == plain(lines).strip()
