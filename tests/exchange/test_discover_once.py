"""``shapes="once"``: asked for what is new on this rank, and never wrong without an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation, simulate
from tests.support.worlds import SIZES, World

EACH_SIZE = pytest.mark.parametrize("size", SIZES)


def rows(rank: int, step: int = 0) -> Tensor:
    return torch.full(((rank + step) % 4, 2), 10.0 * rank + step)


def walked(adapter: Adapter) -> None:
    """Shift uneven rows, of two kinds in turn, under grad and without."""
    exchange = Exchange(Ring, adapter)
    left = (exchange.rank - 1) % exchange.size
    for step in (0, 1, 0, 1, 0):
        mine = rows(exchange.rank, step).requires_grad_()
        started = exchange.start_shift(mine, shapes="once").wait()
        arrived = exchange.shift(mine, shapes="once")
        assert torch.equal(started, arrived)
        assert torch.equal(arrived, rows(left, step))
        exchange.join((arrived * (exchange.rank + 1)).sum()).backward()
        assert mine.grad is not None
        assert torch.all(mine.grad == (exchange.rank + 1) % exchange.size + 1)
        with torch.no_grad():
            both = exchange.exchange(to_left=mine, to_right=(mine, mine), shapes="once")
        assert torch.equal(both.from_left[1], rows(left, step))


@EACH_SIZE
def test_uneven_rows_arrive_as_they_were_sent(world: World, size: int) -> None:
    world(walked, size)


def messages(adapter: Adapter, shapes: str, verify: str = "auto") -> None:
    exchange = Exchange(Ring, adapter, verify=verify)  # type: ignore[arg-type]
    for _ in range(5):
        exchange.shift(rows(exchange.rank + 1), shapes=shapes)  # type: ignore[arg-type]


def count(*arguments: str, tags: bool = True) -> int:
    """Return how many messages three ranks send to make five shifts."""
    simulation = Simulation(3, tags=tags)
    simulation.run(lambda adapter: messages(adapter, *arguments))
    return sum(traffic.messages for traffic in simulation.traffic.values())


def test_only_what_is_new_is_asked_for() -> None:
    payloads, headers, descriptions = 3, 6, 3
    assert count("once") == 5 * payloads + headers + descriptions
    assert count("discover") == 5 * (payloads + headers + descriptions)


def test_without_tags_it_is_asked_always_but_under_headers() -> None:
    assert count("once", tags=False) == count("discover", tags=False)
    assert count("once", "off") == count("discover", "off")
    assert count("once", "always", tags=False) < count("discover", "always", tags=False)


def changing(adapter: Adapter, steps: list[list[int]]) -> None:
    exchange = Exchange(Ring, adapter)
    for sizes in steps:
        exchange.shift(torch.ones(sizes[exchange.rank]), shapes="once")


STALE = {
    "one rank alone": [[1, 2, 3], [1, 2, 4]],
    "known to each, but not together": [[1, 2, 3], [3, 1, 2], [1, 1, 3]],
}


@pytest.mark.parametrize("steps", STALE.values(), ids=STALE)
def test_shapes_that_hold_no_longer_are_a_mismatch(steps: list[list[int]]) -> None:
    with pytest.raises(ExchangeMismatch, match="differ in"):
        simulate(3, changing, steps)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("steps", STALE.values(), ids=STALE)
def test_shapes_that_hold_no_longer_are_a_mismatch_on_every_rank(steps: list[list[int]]) -> None:
    adapter = RawDDPAdapter()
    with pytest.raises(ExchangeMismatch):
        changing(adapter, steps)


@pytest.mark.ranks(2)
def test_headers_say_what_differs_where_shapes_hold_no_longer(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), verify="always", timeout=20)
    exchange.shift(torch.ones(rank + 1), shapes="once")
    with pytest.raises(ExchangeMismatch, match=r"shapes: (same / discover|discover / same)"):
        exchange.shift(torch.ones(rank + 1 + rank), shapes="once")
