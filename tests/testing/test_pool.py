"""Runs on the pool: values by rank, and what a program starts from."""

from __future__ import annotations

import os
import random
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives.testing.pool import RANK, RankPool
from tests.support.ranks import failure


@dataclass(frozen=True)
class Point:
    x: int
    y: torch.Tensor


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

    def test_a_world_without_ranks_is_refused(self, rank_pool: RankPool) -> None:
        with pytest.raises(ValueError, match="a world size is 1 or more, got 0"):
            rank_pool.run(dist.get_rank, size=0)

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
