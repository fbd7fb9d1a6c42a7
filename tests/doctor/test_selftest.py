"""The self-test: two real ranks; and whatever they do instead, it comes to an end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from collectives.doctor import selftest
from collectives.doctor.pair import RESULT, STAGE
from collectives.doctor.selftest import PairTest, run_pair

GOOD = json.dumps({"error": "", "joined": 0.1, "small": 0.2, "large": 0.3})
BAD = json.dumps({"error": "refused", "joined": 0, "small": 0, "large": 0})


def instead(monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    """Let the ranks run these programs in place of the exchange."""

    def start(rank: int, *_: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", programs[rank]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    monkeypatch.setattr(selftest, "_start", start)
    monkeypatch.setattr(selftest, "_AFTER", 0.3)
    monkeypatch.setattr(selftest, "_START", 0.3)


def run(timeout: float = 0.2) -> tuple[PairTest, list[str], float]:
    begun = time.monotonic()
    told: list[str] = []
    test = run_pair(os.environ, timeout, lambda what, _: told.append(what))
    return test, told, time.monotonic() - begun


def test_the_slower_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = GOOD.replace("0.2", "0.9")
    stage = f"print({STAGE + 'exchanging'!r}, flush=True)"
    instead(monkeypatch, f"{stage};print({RESULT + GOOD!r})", f"{stage};print({RESULT + slow!r})")
    test, told, _ = run()
    assert (test.trial.error, test.trial.small) == ("", 0.9)
    assert told[0] == "starting Python and torch"


def test_where_the_second_rank_cannot_be_started_the_first_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(rank: int, *_: object) -> subprocess.Popen[str]:
        if rank == 1:
            raise BlockingIOError("fork: Resource temporarily unavailable")
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(60)"],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[0]

    monkeypatch.setattr(selftest, "_start", start)
    with pytest.raises(BlockingIOError):
        run()
    assert started[0].returncode == -signal.SIGKILL


def test_the_first_error_is_told_and_the_other_rank_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instead(monkeypatch, "import time; time.sleep(60)", f"print({RESULT + BAD!r})")
    test, _, seconds = run(timeout=30)
    assert test.trial.error == "refused"
    assert seconds < 10


def test_a_rank_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    instead(monkeypatch, "import time; time.sleep(60)", "raise SystemExit('no such module')")
    test, _, _ = run(timeout=30)
    assert test.trial.error.startswith("rank 1 of 2 ended without a word")
    assert test.output == "[rank 1] no such module"


def test_ranks_that_hang_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = f"import time; print({STAGE + 'exchanging'!r}, flush=True); time.sleep(60)"
    instead(monkeypatch, hang, hang)
    test, _, seconds = run()
    assert test.trial.error.startswith("rank 0 of 2 was still exchanging")
    assert seconds < 10
