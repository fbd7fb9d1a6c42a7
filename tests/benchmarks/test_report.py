"""What the benchmark makes of its samples."""

from __future__ import annotations

import json

import pytest

from benchmarks.contest import Spread, in_turn
from benchmarks.report import Measurement, Report, Target, seconds_in_words

RATIO = Measurement("speed", "Speed", "slow", {"slow": [4.0, 9.0, 2.0], "fast": [2.0, 3.0, 2.0]})
DIFFERENCE = Measurement("cost", "Cost", "a", {"a": [1.0, 2.0], "b": [1.5, 2.25]}, adds=True)


def report(least: float, most: float) -> Report:
    targets = (
        Target("faster", "speed", "fast", "slow", least),
        Target("cheap", "cost", "b", "a", most),
        Target("not measured", "other", "b", "a", 1.0),
    )
    made = Report(targets, rounds=3, urgent=False)
    made.add(RATIO)
    made.add(DIFFERENCE)
    return made


def test_ratios_are_taken_inside_a_round() -> None:
    assert RATIO.against("slow", "fast") == Spread(median=2.0, low=1.0, high=3.0)


def test_differences_are_taken_inside_a_round() -> None:
    assert DIFFERENCE.against("a", "b") == Spread(median=0.375, low=0.25, high=0.5)


@pytest.mark.parametrize(
    ("least", "most", "met"), [(2.0, 0.375, True), (2.1, 0.375, False), (2.0, 0.3, False)]
)
def test_a_target_is_met_by_the_median(least: float, most: float, met: bool) -> None:
    assert report(least, most).all_met is met


def test_a_claim_that_does_not_hold_is_a_target_missed() -> None:
    made = report(1.0, 1.0)
    made.claim("never", holds=False)
    assert not made.all_met


def test_the_targets_are_printed_with_their_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    made = report(2.0, 0.3)
    capsys.readouterr()
    made.print_targets()
    lines = capsys.readouterr().out.splitlines()
    (faster,) = [line for line in lines if "faster" in line]
    (cheap,) = [line for line in lines if "cheap" in line]
    assert "2.00x [1.00x .. 3.00x]" in faster
    assert "ok" in faster
    assert "below" in cheap
    assert not any("not measured" in line for line in lines)


def test_the_json_holds_every_sample() -> None:
    written = json.loads(report(2.0, 0.3).as_json())
    assert written["measurements"][0]["samples"] == RATIO.samples
    assert [target["met"] for target in written["targets"]] == [True, False]


def test_each_round_begins_with_another_contestant() -> None:
    orders = [in_turn("abc", number) for number in range(4)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


@pytest.mark.parametrize(
    ("seconds", "words"), [(1.5, "1.5 s"), (0.0125, "12.5 ms"), (3e-5, "30 µs"), (5e-7, "0.50 µs")]
)
def test_durations_are_shown_in_a_unit_that_suits_them(seconds: float, words: str) -> None:
    assert seconds_in_words(seconds) == words
