"""One program, every transport.

A program takes an adapter and runs on each rank: ``world(program, size, *args)`` returns its
values by rank, from gloo ranks of the pool, or from the simulator with and without tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from collectives import Adapter
from collectives.testing import Simulation
from collectives.testing.pool import RankPool

__all__ = ["SIZES", "World", "ranks", "world"]

SIZES = (1, 2, 3, 5)
T = TypeVar("T")


class World:
    """Runs programs on one transport.

    Args:
        name: "gloo", "simulator", or "batches": the simulator without tags, as NCCL.
        pool: Of gloo ranks.
    """

    def __init__(self, name: str, pool: RankPool) -> None:
        self.name, self._pool = name, pool

    def __call__(
        self, program: Callable[..., T], size: int, *args: object, timeout: float = 60.0
    ) -> list[T]:
        if self.name == "gloo":
            return self._pool.run(_over_group, program, *args, size=size, timeout=timeout)
        simulation = Simulation(size, seed=size, tags=self.name == "simulator")
        return simulation.run(lambda adapter: program(adapter, *args))


def _over_group(program: Callable[..., T], *args: object) -> T:
    from adapters.raw_ddp import RawDDPAdapter

    adapter: Adapter = RawDDPAdapter()
    return program(adapter, *args)


@pytest.fixture
def ranks(rank_pool: RankPool) -> World:
    """Real ranks only: the simulator's are threads, which share what torch has once a process."""
    return World("gloo", rank_pool)


@pytest.fixture(params=["simulator", "batches", "gloo"])
def world(request: pytest.FixtureRequest, rank_pool: RankPool) -> World:
    return World(request.param, rank_pool)
