"""What tests of the pool ask of its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collectives.testing.pool import RankPool, RanksFailedError

__all__ = ["alive", "entries", "failure", "linux", "pids", "wait_until"]

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


def failure(pool: RankPool, program: Callable[[], object], size: int, timeout: float = 30) -> str:
    with pytest.raises(RanksFailedError) as caught:
        pool.run(program, size=size, timeout=timeout)
    return str(caught.value)


def pids(pool: RankPool, size: int = 3) -> list[int]:
    return pool.run(os.getpid, size=size, backend=None)


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def entries(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()
