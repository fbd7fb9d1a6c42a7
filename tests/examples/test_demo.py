"""The demo as ``make demo`` runs it, each example under its real launcher."""

from __future__ import annotations

import fcntl
import sys
import time
from pathlib import Path

import pytest

from examples import demo
from examples.launch import JOBS, Job, LaunchError, launch


@pytest.mark.timeout(400)
def test_the_demo_on_two_ranks_agrees_learns_and_draws(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = demo.main(
        ["--ranks", "2", "--precision", "64", "--steps", "50", "--output", str(tmp_path)]
    )
    text = capfd.readouterr().out
    assert code == 0, text
    assert "All 4 runs agree within 1e-09: the global loss at each of 50 steps" in text
    for job in JOBS:
        assert f"{job.run}: step 50/50, loss of rank 0:" in text
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_fails_ends_the_demo_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "JOBS", (Job("lost", "Lost", "examples.nowhere"),))
    assert demo.main(["--output", str(tmp_path)]) == 1
    assert "Lost: ended with exit code 1; its output stands above" in capfd.readouterr().out


HOLD_A_LOCK = """
import fcntl, subprocess, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", file=lock, flush=True)
command = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.run(command, pass_fds=[lock.fileno()])
"""


class JobWithAChild(Job):
    def command(self, ranks: int) -> list[str]:
        assert ranks == 1
        return [sys.executable, "-c", HOLD_A_LOCK]


def is_free(path: Path, within: float = 10.0) -> bool:
    """A process lets go of its locks a moment after the signal that kills it."""
    end = time.monotonic() + within
    while not takes_lock(path) and time.monotonic() < end:
        time.sleep(0.01)
    return takes_lock(path)


def takes_lock(path: Path) -> bool:
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_run_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(LaunchError, match=r"Slow: not done after 3 s \(raise --timeout\)"):
        launch(JobWithAChild("slow", "Slow", ""), ranks=1, options=[str(path)], timeout=3)
    assert path.read_text() == "held\n"
    assert is_free(path)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("RANKS", "7", "RANKS: a batch of 60 does not split evenly: expected one of 1, 2, 3, 4, 5"),
        ("RANKS", "0", "RANKS: a batch of 60 does not split evenly"),
        ("RANKS", "two", "--ranks: invalid int value: 'two'"),
        ("PRECISION", "16", "PRECISION: expected 32 or 64, got 16"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_with_a_sentence(
    variable: str,
    value: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as stop:
        demo.main([])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
