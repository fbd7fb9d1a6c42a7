"""Notices by which processes of one host meet, and Slurm's addresses."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from collectives.errors import ContextError
from collectives.rendezvous import find_notice, post_notice, slurm_address


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_notice_is_found_while_it_stands_and_not_after() -> None:
    with post_notice("job", "29501"):
        assert find_notice("job", 1.0) == "29501"
    with pytest.raises(ContextError, match=r"rank 0 of job 'job'.*within 0\.05 s.*MASTER_ADDR"):
        find_notice("job", 0.05)


def test_a_notice_of_another_job_is_not_taken() -> None:
    with post_notice("one/job", "1"), post_notice("another job", "2"):
        assert find_notice("one/job", 1.0) == "1"
        assert find_notice("another job", 1.0) == "2"


def die_holding_a_notice(pipe: Connection) -> None:
    with post_notice("job", "1"):
        pipe.send("posted")
        pipe.recv()  # killed here


def test_the_notice_of_a_process_that_was_killed_is_ignored_and_replaced() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=die_holding_a_notice, args=(theirs,))
    process.start()
    assert ours.poll(10)
    assert find_notice("job", 1.0) == "1"
    process.kill()
    process.join()
    with pytest.raises(ContextError):
        find_notice("job", 0.05)
    with post_notice("job", "2"):
        assert find_notice("job", 1.0) == "2"


def test_two_jobs_of_one_name_at_once_are_refused() -> None:
    with (
        post_notice("job", "1"),
        pytest.raises(ContextError, match="two jobs"),
        post_notice("job", "2"),
    ):
        pytest.fail("posted twice")
    with post_notice("job", "3"):
        assert find_notice("job", 1.0) == "3"


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    with post_notice("job", "1"):
        (folder,) = tmp_path.iterdir()
    folder.chmod(0o755)
    with pytest.raises(ContextError, match="only this user"), post_notice("job", "1"):
        pytest.fail("posted in an open folder")


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu07", "gpu07"),
        ("gpu[07-09,12],login1", "gpu07"),
        ("a1,a2", "a1"),
        ("tux[3,5]-x", "tux3-x"),
        ("rack-2-node[001-128]", "rack-2-node001"),
    ],
)
def test_rank_0_of_a_slurm_job_is_on_the_first_host_of_the_list(nodes: str, host: str) -> None:
    environ = {"SLURM_JOB_ID": "1000000", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": nodes}
    address = slurm_address(environ)
    assert address is not None
    assert address[0] == host
    assert 15_000 <= address[1] < 32_000
    assert address != slurm_address({**environ, "SLURM_STEP_ID": "2"})


@pytest.mark.parametrize(
    "environ", [{}, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_ID": "x", "SLURM_NODELIST": "a"}]
)
def test_a_slurm_job_without_number_or_hosts_has_no_address(environ: dict[str, str]) -> None:
    assert slurm_address(environ) is None
