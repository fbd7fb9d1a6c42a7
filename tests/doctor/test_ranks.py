"""What the ranks of a job tell rank 0, and what becomes of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from collectives.doctor.checks import differences
from collectives.doctor.findings import Finding
from collectives.doctor.rank import RankReport, Trial
from collectives.doctor.together import Job, merged
from collectives.errors import ArgumentError
from collectives.launcher import Launch

WRONG = Finding("problem", "wrong", "do it", "detail", ("a/b#1",), (), "topic", "check")
GOOD = Trial("", 0.1, 0.2, 0.3)
FACTS = {"size": "3", "torch": "2.13.0", "device": "cpu"}


def report(rank: int, *findings: Finding, trial: Trial | None = GOOD, **facts: str) -> RankReport:
    return RankReport(rank, {**FACTS, **facts}, findings, trial)


def job(*reports: RankReport, size: int = 3) -> Job:
    first, *others = reports
    made = Job(Launch("torchrun", 0, size, 0, 0, one_host=True, job=""), first)
    made.read({other.rank: other.to_json() for other in others})
    return made


def test_a_report_comes_back_as_it_was_written() -> None:
    one = report(1, WRONG, dataclasses.replace(WRONG, severity="warning", ranks=(1, 2)))
    assert RankReport.from_json(one.to_json()) == one
    assert RankReport.from_json(report(1, trial=None).to_json()) == report(1, trial=None)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rank": "x"}', "null", "[" * 10_000])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected what a rank found"):
        RankReport.from_json(text)


def test_a_rank_that_tells_nonsense_is_a_finding_and_no_error() -> None:
    made = job(report(0), size=2)
    made.read({1: json.dumps({"rank": 1})})
    titles = [finding.title for finding in made.findings()]
    assert [title[:34] for title in titles] == [
        "doctor: expected what a rank found",
        "the ranks cannot exchange",
    ]


def test_findings_that_ranks_share_are_told_once_with_their_ranks() -> None:
    found = merged([report(0), report(1, WRONG), report(2, WRONG)])
    assert found == [dataclasses.replace(WRONG, ranks=(1, 2))]


def test_what_one_check_found_on_many_hosts_is_one_finding() -> None:
    on = [
        dataclasses.replace(WRONG, title=f"gpu{rank:02} is wrong", kind="name", detail="")
        for rank in range(8)
    ]
    twice = dataclasses.replace(WRONG, title="another name is wrong", kind="name")
    found = merged([report(rank, one) for rank, one in enumerate(on)] + [report(8, on[7], twice)])
    assert [(f.title, f.detail, len(f.ranks)) for f in found] == [
        ("gpu00 is wrong", "The like on ranks 1..8.", 9),
        ("another name is wrong", "detail", 1),
    ]


def test_what_ranks_differ_in_is_told() -> None:
    found = differences([report(0), report(1, torch="2.12.0"), report(2, python="3.13.0")])
    assert [(f.severity, f.title) for f in found] == [
        ("problem", "the ranks differ in torch: 2.13.0 on ranks 0 and 2; 2.12.0 on rank 1"),
        ("warning", "the ranks differ in python: none on ranks 0 and 1; 3.13.0 on rank 2"),
    ]
    assert differences([report(0), report(1)]) == []


def test_two_ranks_on_one_gpu_are_told() -> None:
    on = [RankReport(rank, {"device id": f"gpu07:{min(rank, 1)}"}) for rank in range(3)]
    (finding,) = differences(on)
    assert (finding.title, finding.ranks) == ("ranks 1 and 2 use one and the same GPU", (1, 2))


def test_a_rank_that_did_not_report_is_told_and_not_that_others_waited_for_it() -> None:
    late = Trial(error="ContextError: hello: rank 2 did not come within 30 s: 2 of 3 came")
    (finding,) = job(report(0, trial=late), report(1, trial=late)).findings()
    assert finding.title == "rank 2 of 3 did not report"


def test_one_failure_that_all_ranks_were_told_of_is_told_once_in_the_words_of_who_knows() -> None:
    text = "ContextError: Unable to find address for: eth7 (rank 1 of 3)"
    told = Trial(error=f"{text} [told to rank 0 of 3]")
    found = job(report(0, trial=told), report(1, trial=Trial(error=text)), report(2, trial=told))
    (finding,) = found.findings()
    assert finding.ranks == (0, 1, 2)
    assert finding.detail == text


def test_a_rank_that_died_in_the_exchange_is_told() -> None:
    (finding,) = job(report(0), report(1), report(2, trial=None)).findings()
    assert finding.detail == "it did not come to an end in time"
    assert finding.ranks == (2,)


def test_where_the_ranks_cannot_meet_nobody_is_called_absent() -> None:
    made = job(report(0, trial=None))
    made.trouble = "RawDDPAdapter: port 29500 (MASTER_PORT) is in use on this host"
    assert made.missing == []
    (finding,) = made.findings()
    assert finding.title == "the ranks cannot meet: the port of the job is taken"


def test_a_job_in_which_all_is_well_has_no_findings() -> None:
    assert job(report(0), report(1), report(2)).findings() == []
