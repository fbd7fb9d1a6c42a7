"""What COLLECTIVES_... variables may say, and that nonsense in them is an error at first use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ArgumentError
from collectives.settings import (
    check_settings,
    heeded_signals,
    record_choice,
    same_host,
    stall_limit,
)

BOTH = {signal.SIGINT, signal.SIGTERM}


@pytest.mark.parametrize(("text", "seconds"), [(None, 1.0), ("", 1.0), ("0.5", 0.5), ("30", 30.0)])
def test_a_wait_is_looked_into_after_the_seconds_that_are_set(
    text: str | None, seconds: float
) -> None:
    assert stall_limit({} if text is None else {"COLLECTIVES_STALL": text}) == seconds


@pytest.mark.parametrize(
    ("text", "signals"),
    [
        (None, BOTH),
        ("", BOTH),
        ("SIGINT", {signal.SIGINT}),
        ("SIGINT, SIGTERM", BOTH),
        ("off", set()),
        ("OFF", set()),
    ],
)
def test_a_wait_ends_by_the_signals_that_are_set(text: str | None, signals: set[int]) -> None:
    assert heeded_signals({} if text is None else {"COLLECTIVES_SIGNALS": text}) == signals


@pytest.mark.parametrize(("text", "may"), [(None, True), ("", True), ("on", True), ("off", False)])
def test_ranks_of_one_host_may_leave_gloo_aside(text: str | None, may: bool) -> None:
    assert same_host({} if text is None else {"COLLECTIVES_SAME_HOST": text}) == may


def test_flight_records_go_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert record_choice({}) == record_choice({"COLLECTIVES_FLIGHT_RECORD": ""}) == ""
    assert record_choice({"COLLECTIVES_FLIGHT_RECORD": "OFF"}) == "off"
    for text, folder in (
        ("there", tmp_path / "there"),
        ("./new", tmp_path / "new"),
        (f"{tmp_path}/a/b", tmp_path / "a" / "b"),
        ("~", Path.home()),
    ):
        assert record_choice({"COLLECTIVES_FLIGHT_RECORD": text}) == str(folder)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("COLLECTIVES_SAME_HOST", "no", '"on" or "off"'),
        ("COLLECTIVES_STALL", "soon", "a number of seconds above 0, such as 0.5"),
        ("COLLECTIVES_STALL", "0", "a number of seconds above 0"),
        ("COLLECTIVES_STALL", "-1", "a number of seconds above 0"),
        ("COLLECTIVES_STALL", "nan", "a number of seconds above 0"),
        ("COLLECTIVES_STALL", "inf", "a number of seconds above 0"),
        ("COLLECTIVES_SIGNALS", "INT", 'names of signals, such as "SIGINT SIGTERM", or "off"'),
        ("COLLECTIVES_SIGNALS", "SIGINT off", "names of signals"),
        ("COLLECTIVES_SIGNALS", "SIGTERM SIGKILL", "names of signals"),
        ("COLLECTIVES_SIGNALS", " , ", "names of signals"),
        ("COLLECTIVES_FLIGHT_RECORD", "of", r'"off", or a folder .* \(./of for a new one here\)'),
        ("COLLECTIVES_FLIGHT_RECORD", "0", r'"off", or a folder .* \(./0 for a new one here\)'),
        ("COLLECTIVES_FLIGHT_RECORD", "/dev/null", '"off", or a folder that can be written to'),
        ("COLLECTIVES_FLIGHT_RECORD", "/dev/null/x", '"off", or a folder that can be written to'),
        ("COLLECTIVES_FLIGHT_RECORD", "~nobody-of-that-name", '"off", or a folder'),
        ("COLLECTIVES_FLIGHT_RECORD", "x" * 5000, '"off", or a folder'),
    ],
)
def test_nonsense_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=f"^{name}: expected {allowed}.*, got '{value}'"):
        check_settings({name: value})


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ArgumentError, match="a folder that can be written to"):
        record_choice({"COLLECTIVES_FLIGHT_RECORD": str(tmp_path / "new")})


def test_the_error_comes_at_first_use_on_one_rank_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_STALL", "two")
    exchange = Exchange(Ring, RawDDPAdapter())
    with pytest.raises(ArgumentError, match="COLLECTIVES_STALL"):
        exchange.shift(torch.ones(1))
    monkeypatch.setenv("COLLECTIVES_STALL", "2")
    assert exchange.shift(torch.ones(1)).item() == 1.0
