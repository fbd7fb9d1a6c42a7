"""``python -m collectives doctor`` as people start it: under torchrun, and with something wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launching import environment

LIMIT = 150  # seconds; each takes 4 to 12 on an idle machine

# What a rank does instead of, or before, being the doctor.
SCRIPT = """
import os, runpy, signal, sys, time
wrong = {name[2:]: value for name, value in os.environ.items() if name.startswith("1_")}
if os.environ.get("RANK") == "1":
    if "KILLED" in wrong:
        import collectives.cli  # as long as rank 0 takes
        time.sleep(4)
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ.update(wrong)
runpy.run_module("collectives", run_name="__main__", alter_sys=True)
"""


def doctor(
    folder: Path, *arguments: str, ranks: int = 0, environ: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the doctor, under torchrun where ``ranks`` is given; return how it ended, and when."""
    script = folder / "doctor.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, *launcher, str(script), "doctor", *arguments],
        env=environment(folder, {"COLUMNS": "80", **(environ or {})}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done, time.monotonic() - begun


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_of_torchrun_are_in_one_table_and_the_status_is_0(
    ranks: int, tmp_path: Path
) -> None:
    done, _ = doctor(tmp_path, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("torch-collectives doctor") == 1
    lines = done.stdout.splitlines()
    assert lines[1] == f"All is well: {ranks} ranks exchange the right values"
    table = lines[lines.index("Ranks") + 2 :][:ranks]
    assert [line.split()[0] for line in table] == [str(rank) for rank in range(ranks)]
    assert all(" ok " in line for line in table)


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_json_under_torchrun_is_one_document_of_all_ranks(tmp_path: Path) -> None:
    done, _ = doctor(tmp_path, "--json", ranks=2)
    found = json.loads(done.stdout)
    assert (found["ok"], found["missing"]) == (True, [])
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert all(one["trial"]["small"] > 0 for one in found["ranks"])


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_a_rank_with_a_wrong_interface_is_one_problem_that_names_it(tmp_path: Path) -> None:
    done, _ = doctor(tmp_path, ranks=2, environ={"1_GLOO_SOCKET_IFNAME": "eth99"})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1] == "1 problem"
    assert "GLOO_SOCKET_IFNAME=eth99: 'eth99' names no interface" in lines[3]
    assert "(rank 1)" in " ".join(lines[3:5])


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
@pytest.mark.parametrize("wrong", [{"1_MASTER_ADDR": "no-such-host.invalid"}, {"1_KILLED": "1"}])
def test_a_rank_that_cannot_report_is_in_the_table_and_nothing_hangs(
    wrong: dict[str, str], tmp_path: Path
) -> None:
    done, seconds = doctor(tmp_path, "--timeout", "15", ranks=2, environ=wrong)
    assert done.returncode == 1
    assert "PROBLEM  rank 1 of 2 did not report" in done.stdout
    assert "1     ?" in done.stdout
    if "1_MASTER_ADDR" in wrong:
        assert "MASTER_ADDR='no-such-host.invalid' does not resolve" in done.stderr
    assert seconds < 90


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_a_lone_rank_0_reports_that_nobody_comes(tmp_path: Path, port: int) -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done, seconds = doctor(tmp_path, "--timeout", "4", environ=job)
    assert done.returncode == 1
    assert "PROBLEM  rank 1 of 2 did not report" in done.stdout
    assert seconds < 90


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_the_self_test_fails_in_gloos_words_where_no_check_knows_why(tmp_path: Path) -> None:
    (tmp_path / f"torch-collectives-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"torch-collectives-{os.getuid()}").chmod(0o777)
    done, _ = doctor(tmp_path)
    assert done.returncode == 1
    assert "two ranks on this host cannot exchange" in done.stdout
    assert "only this user can" in done.stdout
