"""Who is blamed for a failed run, for each way to fail."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from collectives.testing.pool import RankPool, RanksSkippedError
from tests.support.ranks import failure


def test_the_rank_that_raised_first_shows_its_traceback(rank_pool: RankPool) -> None:
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


def test_the_frames_of_the_pool_are_left_out(rank_pool: RankPool) -> None:
    text = failure(rank_pool, lambda: 1 // 0, size=1)
    assert text.count("  File ") == 1


def test_a_killed_rank_comes_before_those_that_lost_it(rank_pool: RankPool) -> None:
    def program() -> None:
        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    text = failure(rank_pool, program, size=3)
    assert text.startswith("rank 2 of 3 was killed by SIGKILL\n")
    assert "rank 0 failed after it: RuntimeError" in text


def test_a_crash_shows_where_it_happened(rank_pool: RankPool) -> None:
    def program() -> None:
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        dist.barrier()

    text = failure(rank_pool, program, size=2)
    assert text.startswith("rank 1 of 2 was killed by SIGSEGV\n")
    assert f'File "{__file__}", line ' in text


def test_a_rank_that_leaves_is_named_with_its_status(rank_pool: RankPool) -> None:
    text = failure(rank_pool, lambda: os._exit(3 + dist.get_rank()), size=1)
    assert text == "rank 0 of 1 exited with status 3"


def test_a_stuck_rank_shows_where_it_is(rank_pool: RankPool) -> None:
    def program() -> None:
        if dist.get_rank() == 1:
            time.sleep(60)

    started = time.monotonic()
    text = failure(rank_pool, program, size=2, timeout=1)
    assert time.monotonic() - started < 20
    assert text.startswith("rank 1 of 2 still ran after 1.")
    assert f'File "{__file__}", line ' in text
    assert "rank 0" not in text


def test_a_stopped_rank_is_said_to_be_stopped(rank_pool: RankPool) -> None:
    text = failure(rank_pool, lambda: os.kill(os.getpid(), signal.SIGSTOP), size=1, timeout=1)
    assert "rank 0 of 1 still ran after 1." in text
    assert "(no answer: the process is stopped or in the kernel)" in text


def test_a_rank_that_waits_in_vain_says_so_itself(rank_pool: RankPool) -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(2), src=1)
        else:
            time.sleep(60)

    text = failure(rank_pool, program, size=2, timeout=3)
    assert text.startswith("rank 0 of 2 failed first")
    assert "dist.recv(torch.zeros(2), src=1)" in text
    assert "rank 1 of 2 still ran after" in text


def test_a_skip_counts_only_when_every_rank_skips(rank_pool: RankPool) -> None:
    before = rank_pool.run(os.getpid, size=2)
    with pytest.raises(RanksSkippedError, match="no GPU here"):
        rank_pool.run(pytest.skip, "no GPU here", size=2)
    assert rank_pool.run(os.getpid, size=2) == before  # nothing has failed

    def program() -> None:
        if dist.get_rank() == 0:
            pytest.skip("no GPU here")
        dist.barrier()

    text = failure(rank_pool, program, size=2, timeout=3)
    assert text.startswith("rank 0 of 2 skipped, and others did not: no GPU here")
