"""Contestants that run one after another, round after round, so that noise meets all of them.

A machine's speed drifts by more than what is to be seen. So every ratio and difference is taken
inside one round, in which all contestants ran within a moment, each time in another order; what is
shown is the median over the rounds with the lowest and the highest. One contestant runs twice
under two names: how far the two are apart is how far any figure can be trusted.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist

__all__ = ["Contestants", "Referee", "Samples", "Spread", "in_turn"]

Contestants = Mapping[str, Callable[[], object]]
Samples = dict[str, list[float]]  # seconds per call, by contestant and round

_WARM_UP = 2
_FEWEST, _MOST = 2, 2000  # calls per round
_PAUSE, _LONGEST_PAUSE = 0.3, 0.5  # after a round: its part in which others may run; seconds
_BLOCK = 16  # calls whose processor time is taken together: the clock has a cost of its own


class Spread(NamedTuple):
    """A figure over all rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Summarize one value per round."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Referee:
    """Runs contestants on all ranks at once.

    Args:
        rounds: How often each contestant has its turn.
        slot: Seconds that a turn should take.
        control: A group of its own for agreeing on counts and times; ``None``: the default one.
    """

    rounds: int
    slot: float
    control: dist.ProcessGroup | None = None

    def race(self, contestants: Contestants) -> Samples:
        """Time contestants by the clock.

        Returns:
            The median call of each turn, on the rank where it took longer.
        """
        counts = {name: self._count(call) for name, call in contestants.items()}
        samples: Samples = {name: [] for name in contestants}
        for name in self._turns(contestants):
            durations = self._durations(contestants[name], counts[name])
            samples[name].append(self._agree(statistics.median(durations), dist.ReduceOp.MAX))
        return samples

    def spend(
        self, contestants: Contestants, clock: Callable[[], float] = time.thread_time
    ) -> Samples:
        """Count processor time: work, however long it waits.

        Args:
            contestants: Who has a turn.
            clock: Of the calling thread, or ``time.process_time`` of all threads.

        Returns:
            The mean call of each turn and all ranks.
        """
        counts = {name: self._count(call) for name, call in contestants.items()}
        calls = min(counts.values())
        samples: Samples = {name: [] for name in contestants}
        for name in self._turns(contestants):
            spent = _spent(contestants[name], calls, clock)
            samples[name].append(self._agree(spent, dist.ReduceOp.SUM) / dist.get_world_size())
        return samples

    def _turns(self, contestants: Contestants) -> Iterator[str]:
        gc.collect()
        gc.disable()  # as timeit does: one collection takes as long as a thousand calls
        try:
            yield from self._rounds(contestants)
        finally:
            gc.enable()

    def _rounds(self, contestants: Contestants) -> Iterator[str]:
        for number in range(self.rounds):
            begun = time.perf_counter()
            for name in in_turn(contestants, number):
                self._barrier()
                yield name
            time.sleep(min(_LONGEST_PAUSE, _PAUSE * (time.perf_counter() - begun)))

    def _count(self, call: Callable[[], object]) -> int:
        self._warm_up(call)
        duration = min(self._durations(call, 3))
        duration = self._agree(duration, dist.ReduceOp.MAX)
        return max(_FEWEST, min(_MOST, int(self.slot / duration)))

    def _warm_up(self, call: Callable[[], object]) -> None:
        for _ in range(_WARM_UP):
            call()
        self._barrier()

    def _durations(self, call: Callable[[], object], count: int) -> list[float]:
        call()  # the first one after a barrier still pays for the rank that came late
        clock = time.perf_counter
        times = [clock()]
        for _ in range(count):
            call()
            times.append(clock())
        return [after - before for before, after in pairwise(times)]

    def _agree(self, value: float, how: dist.ReduceOp.RedOpType) -> float:
        shared = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(shared, how, group=self.control)
        return shared.item()

    def _barrier(self) -> None:
        dist.barrier(group=self.control)


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """Return the order of the contestants in round ``number``: each round another one begins."""
    order = list(names)
    first = number % len(order)
    return order[first:] + order[:first]


def _spent(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    call()
    blocks = max(1, calls // _BLOCK)
    spent = 0.0
    for _ in range(blocks):
        begun = clock()
        for _ in range(_BLOCK):
            call()
        spent += clock() - begun
    return spent / (blocks * _BLOCK)
