"""The real launchers, once each: they take seconds, so everything else runs on the pool's ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "launched.py"
LIMIT = 150  # seconds; each takes 5 to 20 on an idle machine


def launch(folder: Path, mode: str, *launcher: str) -> None:
    """Start the script and wait for its end."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    environ.update(
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
        CUDA_VISIBLE_DEVICES="",
        TMPDIR=str(folder),
    )
    log = folder / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, *launcher, str(SCRIPT), mode, str(folder)],
            env=environ,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            ended = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            # torchrun's workers have sessions of their own: it must be alive to end them
            os.killpg(process.pid, signal.SIGTERM)
            ended = None
    assert ended == 0, f"{mode} ended with {ended}\n{log.read_text()}"


def check_ring_of_two(folder: Path) -> None:
    found: list[Any] = [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))]
    assert [one["rank"] for one in found] == [0, 1]
    assert [one["size"] for one in found] == [2, 2]
    assert [one["local_rank"] for one in found] == [0, 1]
    assert [one["from_left"] for one in found] == [1.0, 0.0]
    assert found[0]["process"] != found[1]["process"]


def test_torchrun(tmp_path: Path) -> None:
    launch(tmp_path, "torchrun", "-m", "torch.distributed.run", "--nproc-per-node=2")
    for part in ("first", "second", "own"):
        check_ring_of_two(tmp_path / part)
    for rank in range(2):
        text = (tmp_path / f"refused-{rank}").read_text()
        assert "torchrun started 2 processes, but the Trainer runs each of them alone" in text
        assert f"(rank {rank} of 2)" in text


def test_spawn_of_torch_multiprocessing_without_an_address(tmp_path: Path) -> None:
    launch(tmp_path, "spawned")
    check_ring_of_two(tmp_path)


def test_fabrics_own_launcher(tmp_path: Path) -> None:
    launch(tmp_path, "fabric")
    check_ring_of_two(tmp_path)


def test_the_trainers_own_launcher(tmp_path: Path) -> None:
    launch(tmp_path, "lightning")
    check_ring_of_two(tmp_path)


def test_ddp_spawn_with_an_exchange_made_in_init(tmp_path: Path) -> None:
    launch(tmp_path, "lightning_spawn")
    check_ring_of_two(tmp_path)
