"""Ranks of the benchmark for real: what they yield, and that none is left behind."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks import exchange, guard
from benchmarks.ranks import run_ranks


def ends(rank: int, how: str) -> Iterator[int]:
    yield os.getpid()
    dist.barrier()  # rank 0 has said so before the other ends
    if dist.get_rank() == rank:
        if how == "error":
            raise ValueError(how)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


@pytest.mark.parametrize(("rank", "how"), [(0, "error"), (1, "error"), (1, "killed")])
def test_ranks_that_fail_are_an_error_and_gone(rank: int, how: str) -> None:
    before = set(multiprocessing.active_children())
    running = run_ranks(2, functools.partial(ends, rank, how), limit=120.0)
    first = next(running)
    with pytest.raises(RuntimeError, match="failed"):
        list(running)
    assert set(multiprocessing.active_children()) <= before
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_ranks_that_never_end_are_an_error_and_gone() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match="did not finish in time"):
        list(run_ranks(2, functools.partial(ends, 0, "never"), limit=3.0))
    assert set(multiprocessing.active_children()) <= before


def test_the_benchmark_measures_and_writes_what_it_saw(tmp_path: Path) -> None:
    written = tmp_path / "new" / "bench.json"
    quick = ["--quick", "--rounds", "1", "--only", "exchange", "many", "python"]
    assert exchange.main([*quick, "--json", str(written)]) == 0
    check_samples(written, 3 + 1 + 4)


def test_what_the_guard_costs_is_measured_by_three_clocks(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"
    assert guard.main(["--quick", "--rounds", "1", "--json", str(written)]) == 0
    check_samples(written, 3 * 3)


def check_samples(written: Path, count: int) -> None:
    measurements = json.loads(written.read_text())["measurements"]
    assert len(measurements) == count
    for measurement in measurements:
        assert all(seconds > 0 for (seconds,) in measurement["samples"].values())
