"""The pool: values by rank, a new group for every run, and the blame for each way to fail."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from collectives.testing.pool import RANK, RankPool, RanksFailedError, RanksSkippedError

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


@dataclass(frozen=True)
class Point:
    x: int
    y: torch.Tensor


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


class TestValues:
    def test_they_come_back_by_rank(self, rank_pool: RankPool) -> None:
        def program(rank: int, factor: int, *, shift: int) -> int:
            assert rank == dist.get_rank()
            return factor * rank + shift

        got = rank_pool.run(program, RANK, 10, size=3, kwargs={"shift": 7})
        assert got == [7, 17, 27]

    def test_a_class_of_the_test_module_stays_the_same_class(self, rank_pool: RankPool) -> None:
        (point,) = rank_pool.run(lambda: Point(1, torch.arange(3)), size=1)
        assert isinstance(point, Point)
        assert point.y.tolist() == [0, 1, 2]

    def test_an_argument_that_cannot_be_sent_is_named(self, rank_pool: RankPool) -> None:
        with pytest.raises(TypeError, match=r"argument 'lock' \(lock\) cannot be sent to the rank"):
            rank_pool.run(print, 1, size=2, kwargs={"lock": threading.Lock()})

    def test_a_value_that_cannot_be_sent_is_an_error_of_its_rank(self, rank_pool: RankPool) -> None:
        text = failure(rank_pool, threading.Lock, size=1)
        assert "the program returned a lock, which cannot be sent to the pool" in text


class TestStart:
    def test_every_run_gets_a_new_group_of_its_own_size(self, rank_pool: RankPool) -> None:
        def program() -> int:
            total = torch.tensor(dist.get_rank())
            dist.all_reduce(total)
            return int(total)

        for size in (3, 1, 2, 3):
            assert rank_pool.run(program, size=size) == [size * (size - 1) // 2] * size

    def test_backend_none_means_no_group(self, rank_pool: RankPool) -> None:
        rank_pool.run(dist.barrier, size=2)
        assert rank_pool.run(dist.is_initialized, size=2, backend=None) == [False, False]

    def test_a_rank_adopts_the_environment_and_folder_of_the_pool(
        self, rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        rank_pool.run(dist.barrier, size=1)
        monkeypatch.setenv("SET_AFTER_THE_START", "yes")
        monkeypatch.delenv("PYTEST_VERSION", raising=False)
        monkeypatch.chdir(tmp_path)

        def program() -> tuple[str, bool, str]:
            return (
                os.environ["SET_AFTER_THE_START"],
                "PYTEST_VERSION" in os.environ,
                str(Path.cwd()),
            )

        assert rank_pool.run(program, size=1) == [("yes", False, str(tmp_path))]

    def test_a_rank_adopts_the_warning_filters_of_the_pool(self, rank_pool: RankPool) -> None:
        def program() -> None:
            warnings.warn("mind the gap", UserWarning, stacklevel=1)

        assert "UserWarning: mind the gap" in failure(rank_pool, program, size=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mind")
            rank_pool.run(program, size=1)

    def test_nothing_that_a_program_sets_reaches_the_next(self, rank_pool: RankPool) -> None:
        def spoil() -> None:
            os.environ["LEFT"] = "behind"
            os.chdir("/")
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.set_num_threads(2)
            torch.rand(1), random.random()

        def state() -> list[object]:
            flags = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()]
            numbers = [torch.rand(1).item(), random.random()]
            return [os.environ.get("LEFT"), str(Path.cwd()), *flags, *numbers]

        before = rank_pool.run(state, size=2)
        rank_pool.run(spoil, size=2)
        assert rank_pool.run(state, size=2) == before
        assert before[0][:5] == [None, str(Path.cwd()), torch.float32, True, 1]

    def test_a_module_that_cannot_be_preloaded_is_named(self, tmp_path: Path) -> None:
        with RankPool(tmp_path, preload=["no_such_module"]) as pool:
            text = failure(pool, dist.barrier, size=1)
        assert "rank 0 exited with status 1 while it started" in text
        assert "No module named 'no_such_module'" in text


class TestBlame:
    def test_the_rank_that_raised_first_shows_its_traceback(self, rank_pool: RankPool) -> None:
        def program() -> None:
            if dist.get_rank() == 1:
                raise ValueError("only here")
            dist.barrier()

        text = failure(rank_pool, program, size=3)
        assert text.startswith("rank 1 of 3 failed first, after ")
        assert text.count("Traceback") == 1
        assert 'raise ValueError("only here")' in text  # the source line, not <dynamic-code>
        for other in (0, 2):
            assert f"\nrank {other} failed after it: RuntimeError: " in text

    def test_the_frames_of_the_pool_are_left_out(self, rank_pool: RankPool) -> None:
        text = failure(rank_pool, lambda: 1 // 0, size=1)
        assert text.count("  File ") == 1

    def test_a_killed_rank_comes_before_those_that_lost_it(self, rank_pool: RankPool) -> None:
        def program() -> None:
            if dist.get_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        text = failure(rank_pool, program, size=3)
        assert text.startswith("rank 2 of 3 was killed by SIGKILL\n")
        assert "rank 0 failed after it: RuntimeError" in text

    def test_a_crash_shows_where_it_happened(self, rank_pool: RankPool) -> None:
        def program() -> None:
            if dist.get_rank() == 1:
                ctypes.string_at(0)
            dist.barrier()

        text = failure(rank_pool, program, size=2)
        assert text.startswith("rank 1 of 2 was killed by SIGSEGV\n")
        assert f'File "{__file__}", line ' in text

    def test_a_rank_that_leaves_is_named_with_its_status(self, rank_pool: RankPool) -> None:
        text = failure(rank_pool, lambda: os._exit(3 + dist.get_rank()), size=1)
        assert text == "rank 0 of 1 exited with status 3"

    def test_a_stuck_rank_shows_where_it_is(self, rank_pool: RankPool) -> None:
        def program() -> None:
            if dist.get_rank() == 1:
                time.sleep(60)

        started = time.monotonic()
        text = failure(rank_pool, program, size=2, timeout=1)
        assert time.monotonic() - started < 20
        assert text.startswith("rank 1 of 2 still ran after 1.")
        assert f'File "{__file__}", line ' in text
        assert "rank 0" not in text

    def test_a_stopped_rank_is_said_to_be_stopped(self, rank_pool: RankPool) -> None:
        text = failure(rank_pool, lambda: os.kill(os.getpid(), signal.SIGSTOP), size=1, timeout=1)
        assert "rank 0 of 1 still ran after 1." in text
        assert "(no answer: the process is stopped or in the kernel)" in text

    def test_a_rank_that_waits_in_vain_says_so_itself(self, rank_pool: RankPool) -> None:
        def program() -> None:
            if dist.get_rank() == 0:
                dist.recv(torch.zeros(2), src=1)
            else:
                time.sleep(60)

        text = failure(rank_pool, program, size=2, timeout=3)
        assert text.startswith("rank 0 of 2 failed first")
        assert "dist.recv(torch.zeros(2), src=1)" in text
        assert "rank 1 of 2 still ran after" in text

    def test_a_skip_counts_only_when_every_rank_skips(self, rank_pool: RankPool) -> None:
        with pytest.raises(RanksSkippedError, match="no GPU here"):
            rank_pool.run(pytest.skip, "no GPU here", size=2)

        def program() -> None:
            if dist.get_rank() == 0:
                pytest.skip("no GPU here")
            dist.barrier()

        text = failure(rank_pool, program, size=2)
        assert text.startswith("rank 0 of 2 skipped, and others did not: no GPU here")


class TestProcesses:
    def test_a_run_that_passed_keeps_them_and_a_failure_replaces_all(
        self, rank_pool: RankPool
    ) -> None:
        first = pids(rank_pool)
        assert pids(rank_pool) == first
        assert pids(rank_pool, size=2) == first[:2]
        failure(rank_pool, lambda: 1 // 0, size=2)
        assert not set(pids(rank_pool)) & set(first)

    @linux
    def test_a_failure_takes_what_its_ranks_started_with_it(self, rank_pool: RankPool) -> None:
        def program() -> None:
            child = subprocess.Popen(["sleep", "60"])
            print("child", child.pid, flush=True)
            raise ValueError

        rank_pool.take_output()
        failure(rank_pool, program, size=1)
        child = int(rank_pool.take_output()[0].split()[1])
        assert wait_until(lambda: not alive(child))

    def test_a_death_between_two_runs_is_reported(self, rank_pool: RankPool) -> None:
        os.kill(pids(rank_pool)[1], signal.SIGKILL)
        time.sleep(0.1)
        with pytest.warns(RuntimeWarning, match="between two programs rank 1 was killed by SIGK"):
            assert len(set(pids(rank_pool))) == 3

    def test_an_interrupt_of_the_caller_leaves_no_rank_in_mid_program(
        self, rank_pool: RankPool
    ) -> None:
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
    def test_two_hundred_runs_leave_no_descriptor_no_thread_and_no_memory(
        self, rank_pool: RankPool
    ) -> None:
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
        for (fds, threads, rss), (fds_then, threads_then, rss_then) in zip(
            before, after, strict=True
        ):
            assert fds_then <= fds
            assert threads_then <= threads
            assert rss_then <= rss + 10


SCRIPT = """
import os, sys, time
from pathlib import Path
from collectives.testing.pool import RankPool

def program():
    print_to.joinpath(str(os.getpid())).touch()
    if sys_argv[2] == "stay":
        time.sleep(300)

if __name__ == "__main__":
    sys_argv, print_to = sys.argv, Path(sys.argv[1])
    RankPool(print_to / "pool", preload=[]).run(program, size=3, timeout=300)
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
