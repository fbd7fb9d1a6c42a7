"""Where flight records go by themselves: a private folder per job, which never stops a failure."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import pytest

from collectives.folder import private_folder
from collectives.record import dump, load
from collectives.record.dumping import dumped_jobs, job_name
from tests.support.records import done, record

ONE = record(1, 2, [done(1, 2, 1)], failure="no answer")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the temporary folder of the host, of a job that SLURM calls 77."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "TORCHELASTIC", "OMPI", "PMI", "MASTER", "COLLECTIVES")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_record_is_left_in_a_folder_that_only_this_user_can_enter(temporary: Path) -> None:
    path = dump(ONE)
    folder = temporary / f"torch-collectives-{os.getuid()}"
    assert path == folder / "flight-record" / "77" / "default-rank1.json"
    assert load(path) == ONE
    assert folder.stat().st_mode & 0o777 == 0o700
    assert dumped_jobs() == [path.parent]


def test_the_environment_names_the_folder_or_switches_it_off(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = temporary / "chosen"
    monkeypatch.setenv("COLLECTIVES_FLIGHT_RECORD", str(chosen))
    assert dump(ONE) == chosen / "default-rank1.json"
    monkeypatch.setenv("COLLECTIVES_FLIGHT_RECORD", "off")
    assert dump(ONE) is None
    assert [p.name for p in temporary.iterdir()] == ["chosen"]


def test_simulated_ranks_leave_files_only_where_it_is_asked_for(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = dataclasses.replace(ONE, group="simulation")
    assert dump(simulated) is None
    monkeypatch.setenv("COLLECTIVES_FLIGHT_RECORD", str(temporary))
    assert dump(simulated) == temporary / "simulation-rank1.json"


@pytest.mark.usefixtures("temporary")
def test_only_the_newest_jobs_are_kept() -> None:
    place = private_folder("flight-record")
    for number in range(40):
        (place / f"old-{number}").mkdir()
        (place / f"old-{number}" / "default-rank0.json").write_text("{}")
        os.utime(place / f"old-{number}", (number, number))
    path = dump(ONE)
    assert path is not None
    jobs = dumped_jobs()
    assert len(jobs) == 32
    assert jobs[0] == path.parent
    assert [job.name for job in jobs[1:]] == [f"old-{n}" for n in range(39, 8, -1)]


@pytest.mark.parametrize("obstacle", ["a file", "a folder of many", "a link", "nowhere"])
def test_a_record_that_cannot_be_left_is_no_error(
    obstacle: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / f"torch-collectives-{os.getuid()}"
    if obstacle == "a file":
        folder.write_text("")
    elif obstacle == "a folder of many":
        folder.mkdir()
        folder.chmod(0o777)
    elif obstacle == "a link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(temporary / "elsewhere")
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    assert dump(ONE) is None
    assert dumped_jobs() == []
    assert list(temporary.rglob("*.json")) == []


@pytest.mark.usefixtures("temporary")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")
def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = private_folder("flight-record", "77") / f".default-rank1.json.{os.getpid()}"
    opened = Path.open
    full: list[Path] = []

    def open_full(self: Path, mode: str = "r", **options: str) -> object:
        if self != draft:
            return opened(self, mode, **options)  # type: ignore[call-overload]
        full.append(self)
        return opened(Path("/dev/full"), "w")

    monkeypatch.setattr(Path, "open", open_full)
    assert dump(ONE) is None
    assert full == [draft]
    assert list(draft.parent.iterdir()) == []


@pytest.mark.parametrize(
    "choice", ["/proc/nowhere", "/dev/null", "bad\0name", "~nobody-of-that-name"]
)
def test_a_folder_that_cannot_be_is_no_error(
    choice: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "COLLECTIVES_FLIGHT_RECORD": choice})
    monkeypatch.chdir(temporary)
    assert dump(ONE) is None


PARENT = f"parent-{os.getppid()}"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, PARENT),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "run 1/2"}, "run_1_2"),
        (
            {
                "RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "abc",
                "TORCHELASTIC_RESTART_COUNT": "3",
            },
            "abc_3",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"},
            PARENT,
        ),
        ({"MASTER_PORT": "4711", "LOCAL_RANK": "1"}, "port-4711"),
        (
            {
                "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "9",
                "SLURM_STEP_ID": "1",
            },
            "9_1",
        ),
        ({"SLURM_JOB_ID": ".."}, "__"),
    ],
)  # fmt: skip
def test_a_job_has_one_name_on_all_its_ranks(environ: dict[str, str], name: str) -> None:
    assert job_name(environ) == name
