"""What the command does with a folder that holds more, and worse, than one job's records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectives.cli import main
from tests.support.records import NOON, done, record


def save(folder: Path, run: str, ranks: range, size: int, *, late: float = 0.0) -> None:
    for rank in ranks:
        entries = [done(rank, size, 1, name=run)]
        one = record(rank, size, entries, run=run, pid=len(run) * 100 + rank, written=NOON + late)
        one.save(folder)


def spoilt(folder: Path, **changes: object) -> None:
    """A file beside the others that says something strange."""
    one = folder / "default-rank0.json"
    (folder / "strange.json").write_text(json.dumps({**json.loads(one.read_text()), **changes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, "kv", range(2), 2)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": 2**53}, "size: expected an integer in 1..1048576"),
        ({"rank": 2}, "rank: expected an integer in 0..1"),
        ({"format": "torch-collectives flight record 1"}, "format: expected"),
    ],
)
def test_a_file_that_is_wrong_hides_no_other(
    changes: dict[str, object],
    complaint: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoilt(folder, **changes)
    assert main(["flight-record", str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"flight-record: {folder / 'strange.json'}: {complaint}")
    assert "All ranks agree, and none waits" in printed.out


def test_letters_that_no_terminal_can_show_hide_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt(folder, failure="\x1b[2Jcleared \ud800", rank=1, pid=1)
    assert main(["flight-record", str(folder)]) == 0
    assert "?[2Jcleared ?" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders")
def test_a_pipe_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe.json")
    assert main(["flight-record", str(folder)]) == 1
    printed = capsys.readouterr()
    assert "pipe.json: expected a file" in printed.err
    assert "All ranks agree" in printed.out


def test_of_several_jobs_the_latest_is_reported_and_the_others_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "first", range(4), 4)
    save(tmp_path, "second", range(2), 2, late=60)  # in place of two files of the first
    assert main(["flight-record", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "group 'default': 2 ranks, Ring(2)" in printed
    assert "'second'" in printed
    assert "'first'" not in printed
    assert "also has records of another job" in printed
    assert "(ranks 2 and 3 of 4); --all reports them too." in printed


def test_all_jobs_are_reported_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "first", range(4), 4)
    save(tmp_path, "second", range(2), 2, late=60)
    assert main(["flight-record", str(tmp_path), "--all"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("2 ranks, Ring(2)") < printed.index("4 ranks, Ring(4)")
    assert "There is no file of ranks 0 and 1" in printed
    assert "also has records" not in printed


def test_json_has_the_latest_job_and_says_how_many_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, "first", range(4), 4)
    save(tmp_path, "second", range(2), 2, late=60)
    assert main(["flight-record", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 2
    assert [(g["size"], g["job"], len(g["ranks"])) for g in found["groups"]] == [(2, 0, 2)]
