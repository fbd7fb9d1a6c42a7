"""The processes of the pool: when they are replaced, what they leave, how they end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from collectives.testing.pool import RankPool
from tests.support.ranks import alive, entries, failure, linux, pids, wait_until


def test_a_run_that_passed_keeps_them_and_a_failure_replaces_all(rank_pool: RankPool) -> None:
    first = pids(rank_pool)
    assert pids(rank_pool) == first
    assert pids(rank_pool, size=2) == first[:2]
    failure(rank_pool, lambda: 1 // 0, size=2)
    assert not set(pids(rank_pool)) & set(first)


@linux
def test_a_failure_takes_what_its_ranks_started_with_it(rank_pool: RankPool) -> None:
    def program() -> None:
        child = subprocess.Popen(["sleep", "60"])
        print("child", child.pid, flush=True)
        raise ValueError

    rank_pool.take_output()
    failure(rank_pool, program, size=1)
    child = int(rank_pool.take_output()[0].split()[1])
    assert wait_until(lambda: not alive(child))


def test_a_death_between_two_runs_is_reported(rank_pool: RankPool) -> None:
    os.kill(pids(rank_pool)[1], signal.SIGKILL)
    time.sleep(0.1)
    with pytest.warns(RuntimeWarning, match="between two programs rank 1 was killed by SIGK"):
        assert len(set(pids(rank_pool))) == 3


def test_an_interrupt_of_the_caller_leaves_no_rank_in_mid_program(rank_pool: RankPool) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = pids(rank_pool, size=1)
    handler = signal.signal(signal.SIGUSR2, interrupt)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rank_pool.run(time.sleep, 60, size=1)
    finally:
        signal.signal(signal.SIGUSR2, handler)
        timer.join()
    assert pids(rank_pool, size=1) != before


@linux
def test_two_hundred_runs_leave_no_descriptor_no_thread_and_no_memory(rank_pool: RankPool) -> None:
    def program() -> tuple[int, int, int]:
        model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
        model(torch.ones(1, 64)).sum().backward()
        setattr(model, "itself", model)  # noqa: B010 - a cycle keeps it beyond this call
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        return entries("/proc/self/fd"), entries("/proc/self/task"), resident

    numbers = random.Random(0)
    rank_pool.discard()
    for _ in range(20):
        rank_pool.run(program, size=numbers.choice((1, 2, 3)))
    before, own = rank_pool.run(program, size=3), entries("/proc/self/fd")
    for _ in range(180):
        rank_pool.run(program, size=numbers.choice((1, 2, 3)))
    after = rank_pool.run(program, size=3)
    assert entries("/proc/self/fd") <= own
    for (fds, threads, rss), (fds_then, threads_then, rss_then) in zip(before, after, strict=True):
        assert fds_then <= fds
        assert threads_then <= threads
        assert rss_then <= rss + 10


SCRIPT = """
import os, sys, time
from pathlib import Path
from collectives.testing.pool import RankPool

def program():
    Path(notes, str(os.getpid())).touch()
    if mode == "stay":
        time.sleep(300)

if __name__ == "__main__":
    notes, mode = sys.argv[1:]
    RankPool(Path(notes, "pool"), preload=[]).run(program, size=3, timeout=300)
    print("ran")
"""


@linux
class TestEnd:
    @staticmethod
    def start(folder: Path, mode: str) -> subprocess.Popen[str]:
        script = folder / "script.py"
        script.write_text(SCRIPT)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(script), str(folder / "pids"), mode]
        (folder / "pids").mkdir()
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def ranks(folder: Path) -> list[int]:
        return [int(path.name) for path in (folder / "pids").iterdir() if path.name != "pool"]

    def test_ranks_in_mid_program_end_when_the_pool_is_killed(self, tmp_path: Path) -> None:
        with self.start(tmp_path, "stay") as process:
            assert wait_until(lambda: len(self.ranks(tmp_path)) == 3, 60)
            process.kill()
        assert wait_until(lambda: not any(map(alive, self.ranks(tmp_path))))

    def test_a_script_that_never_closes_its_pool_ends_all_the_same(self, tmp_path: Path) -> None:
        with self.start(tmp_path, "leave") as process:
            output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "ran\n")
        assert wait_until(lambda: not any(map(alive, self.ranks(tmp_path))))
