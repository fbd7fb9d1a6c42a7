"""A thousand random programs whose graph differs from rank to rank: none hangs, none is wrong.

Every rank makes the same exchanges, of inputs that it combines in its own way: some detached, some
frozen, some outputs never used, some losses without any exchange. The reference runs all ranks of
a program in one process, in one autograd graph, with list indexing for exchanges.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Pending, Ring
from tests.support.worlds import World

GRAPHS_PER_SIZE = 200
SIZES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Use:
    """How one rank makes a tensor of those that it has."""

    which: tuple[int, ...]
    weight: float
    detached: bool
    curved: bool

    def of(self, pool: list[Tensor]) -> Tensor:
        total = self.weight * torch.ones(2, dtype=torch.float64)
        for i in self.which:
            total = total + self.weight * pool[i % len(pool)]
        total = total.sin() if self.curved else total
        return total.detach() if self.detached else total


@dataclass(frozen=True)
class Step:
    """One exchange of all ranks: the same operation, of inputs of each rank's own."""

    op: str
    offset: int
    pairs: tuple[tuple[int, int], ...]
    uses: tuple[tuple[Use, Use], ...]  # by rank


@dataclass(frozen=True)
class Program:
    size: int
    periodic: bool
    frozen: tuple[bool, ...]
    steps: tuple[Step, ...]
    losses: tuple[Use | None, ...]

    def start(self, rank: int) -> Tensor:
        x = torch.tensor([0.3 + rank, -0.2 * rank], dtype=torch.float64)
        return x.requires_grad_(not self.frozen[rank])


def make(seed: int, size: int) -> Program:
    rng = random.Random(1000 * seed + size)

    def use() -> Use:
        which = tuple(rng.randrange(20) for _ in range(rng.randint(0, 3)))
        weight = rng.uniform(-1, 1)
        return Use(which, weight, rng.random() < 0.25, rng.random() < 0.5)

    def pairs() -> tuple[tuple[int, int], ...]:
        count = rng.randint(0, size)
        sources, destinations = rng.sample(range(size), count), rng.sample(range(size), count)
        return tuple(zip(sources, destinations, strict=True))

    steps = tuple(
        Step(
            rng.choice(["shift", "exchange", "permute", "start"]),
            rng.randint(-size, size),
            pairs(),
            tuple((use(), use()) for _ in range(size)),
        )
        for _ in range(rng.randint(1, 6))
    )
    return Program(
        size=size,
        periodic=rng.random() < 0.7,
        frozen=tuple(rng.random() < 0.25 for _ in range(size)),
        steps=steps,
        losses=tuple(None if rng.random() < 0.2 else use() for _ in range(size)),
    )


def reference(program: Program) -> list[Tensor | None]:
    """All ranks in one graph; the loss is the sum over ranks."""
    size, ring = program.size, Ring(program.size, periodic=program.periodic)
    starts = [program.start(rank) for rank in range(size)]
    pools = [[x] for x in starts]
    for step in program.steps:
        sent = [tuple(u.of(pools[r]) for u in step.uses[r]) for r in range(size)]
        for rank in range(size):
            pools[rank] += delivered(step, ring, rank, sent)
    losses = [use.of(pool).sum() for use, pool in zip(program.losses, pools, strict=True) if use]
    total = sum(losses, torch.zeros((), dtype=torch.float64))
    if total.requires_grad:
        total.backward()
    return [x.grad for x in starts]


def delivered(
    step: Step, ring: Ring, rank: int, sent: list[tuple[Tensor, ...]]
) -> Iterator[Tensor]:
    if step.op == "exchange":
        sources = [(ring.left(rank), 1), (ring.right(rank), 0)]
    elif step.op == "permute":
        sources = [({d: s for s, d in step.pairs}.get(rank), 0)]
    else:
        sources = [(ring.shift(rank, step.offset).source, 0)]
    for source, side in sources:
        yield torch.zeros(2).double() if source is None else sent[source][side]


def on_ranks(exchange: Exchange, program: Program) -> Tensor | None:
    rank = exchange.rank
    x = program.start(rank)
    pool: list[Tensor] = [x]
    late: list[Pending[Tensor]] = []
    for step in program.steps:
        first, second = (use.of(pool) for use in step.uses[rank])
        if step.op == "exchange":
            pool += exchange.exchange(to_left=first, to_right=second)
        elif step.op == "permute":
            pool.append(exchange.permute(first, step.pairs))
        elif step.op == "shift":
            pool.append(exchange.shift(first, step.offset))
        else:
            late.append(exchange.start_shift(first, step.offset))
            pool.append(late.pop().wait())
    use = program.losses[rank]
    loss = use.of(pool).sum() if use else torch.zeros((), dtype=torch.float64)
    loss = exchange.join(loss)
    loss.backward()
    exchange.mark_step(len(program.steps))
    return x.grad


def difference(gradient: Tensor | None, expected: Tensor | None) -> float:
    zeros = torch.zeros(2).double()
    left = zeros if gradient is None else gradient
    right = zeros if expected is None else expected
    return (left - right).abs().max().item()


def many(adapter: Adapter, seeds: range) -> float:
    worst = 0.0
    size = adapter.context().size
    exchanges = {p: Exchange(Ring(size, periodic=p), adapter) for p in (True, False)}
    for seed in seeds:
        program = make(seed, size)
        gradient = on_ranks(exchanges[program.periodic], program)
        expected = reference(program)[exchanges[True].rank]
        worst = max(worst, difference(gradient, expected))
    return worst


@pytest.mark.parametrize("size", SIZES)
def test_random_rank_dependent_graphs_are_right(world: World, size: int) -> None:
    assert max(world(many, size, range(GRAPHS_PER_SIZE), timeout=120.0)) <= 1e-12
