"""Loops over uneven numbers of batches: they end on all ranks at once, or say why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Graph, Mesh, Ring, even_steps
from collectives.errors import ArgumentError, ExchangeError
from collectives.plan import check_plans, plan_dissemination
from collectives.testing import Simulation, simulate
from collectives.topology import Topology
from tests.support.worlds import SIZES, World

When = Literal["first", "last"]


def batches(rank: int) -> list[int]:
    """Another number on each rank: 4, 6, 3, 5, 7."""
    return [10 * rank + i for i in range((4, 6, 3, 5, 7)[rank])]


def walked(
    adapter: Adapter, when: When, sized: tuple[int, ...], topology: Topology | None = None
) -> tuple[list[int | None], float]:
    """Return what the loop brought, and the sum of what the neighbours had at each step."""
    exchange = Exchange(Ring if topology is None else topology, adapter)
    mine = batches(exchange.rank)
    loader: Iterable[int] = mine if exchange.rank in sized else iter(mine)
    pairs = [(r, (r + 1) % exchange.size) for r in range(exchange.size)]
    seen: list[int | None] = []
    total = 0.0
    steps: Iterable[int | None] = even_steps(loader, exchange, when=when)
    for batch in steps:
        seen.append(batch)
        x = torch.tensor(0.0 if batch is None else float(batch), requires_grad=True)
        total += exchange.join(exchange.permute(x, pairs)).item()
    return seen, total


def expected(rank: int, size: int, when: When) -> tuple[list[int | None], float]:
    lengths = [len(batches(r)) for r in range(size)]
    steps = min(lengths) if when == "first" else max(lengths)
    rows = [(batches(r) + [None] * steps)[:steps] for r in range(size)]
    return rows[rank], float(sum(batch or 0 for batch in rows[(rank - 1) % size]))


ALL = tuple(range(5))


@pytest.mark.parametrize("sized", [ALL, (), (0, 2)], ids=["all sized", "none sized", "some sized"])
@pytest.mark.parametrize("when", ["first", "last"])
@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_make_the_same_number_of_steps(
    world: World, size: int, when: When, sized: tuple[int, ...]
) -> None:
    by_rank = world(walked, size, when, sized)
    assert by_rank == [expected(rank, size, when) for rank in range(size)]


@pytest.mark.parametrize(
    "topology",
    [
        Ring(3, periodic=False),
        Mesh((3, 1), axes=("y", "x")),
        Graph(3, [(0, 1)]),
        Graph(3, []),
    ],
    ids=repr,
)
@pytest.mark.parametrize("sized", [ALL, ()], ids=["sized", "unsized"])
def test_ranks_agree_on_any_topology(
    world: World, topology: Topology, sized: tuple[int, ...]
) -> None:
    by_rank = world(walked, 3, "last", sized, topology)
    assert by_rank == [expected(rank, 3, "last") for rank in range(3)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
def test_after_the_last_round_every_rank_has_heard_of_all(size: int) -> None:
    by_rank = [plan_dissemination("agree", size, rank) for rank in range(size)]
    heard = [{rank} for rank in range(size)]
    for plans in zip(*by_rank, strict=True):
        check_plans(plans)
        sources = [plan.lanes[0].source for plan in plans]
        heard = [own | heard[s] for own, s in zip(heard, sources, strict=True) if s is not None]
    assert heard == [set(range(size))] * size
    assert len(by_rank[0]) == (size - 1).bit_length()


@pytest.mark.parametrize("unsized", [False, True], ids=["sized", "unsized"])
def test_the_cost_is_one_agreement_or_one_per_step(*, unsized: bool) -> None:
    simulation = Simulation(5)

    def program(adapter: Adapter) -> float:
        exchange = Exchange(Ring, adapter)
        loader: Iterable[int] = range(4)
        assert len(list(even_steps(iter(loader) if unsized else loader, exchange))) == 4
        return exchange.stats()["exchanges"]

    # ceil(log2(5)) = 3 exchanges: for the lengths, and before each step and the end.
    assert simulation.run(program) == [3 * 6 if unsized else 3] * 5


def grad_untouched(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2, requires_grad=True)
    y = exchange.shift(x)
    for _ in even_steps(iter(range(2)), exchange):
        y = exchange.shift(y)
    exchange.join(y.sum()).backward()
    exchange.check_backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert len(list(even_steps(iter(range(2)), exchange))) == 2
    return bool((x.grad == 1).all()) and len(exchange.flight_record().entries) > 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_agreements_are_no_part_of_the_chain(world: World, size: int) -> None:
    assert world(grad_untouched, size) == [True] * size


def empty_loaders(adapter: Adapter) -> list[int]:
    exchange = Exchange(Ring, adapter)
    first: list[int] = [] if exchange.rank == 0 else [1, 2]
    counts = [len(list(even_steps(first, exchange))), len(list(even_steps(iter(first), exchange)))]
    nothing: list[int] = []
    counts += [len(list(even_steps(nothing, exchange, when="last")))]
    counts += [len(list(even_steps(iter(nothing), exchange, when="last")))]
    return counts


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_without_any_batch_ends_the_loop_at_once(world: World, size: int) -> None:
    assert world(empty_loaders, size) == [[0, 0, 0, 0]] * size


class Short(Sampler[int]):
    """Says five, yields ``count``."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def loader_of(count: int) -> DataLoader[int]:
    data: list[int] = list(range(10))
    return DataLoader(data, sampler=Short(count))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "when", "says"),
    [(3, "first", "it ended after 3"), (3, "last", "it ended after 3"), (7, "last", "it goes on")],
)
def test_a_length_that_is_wrong_is_an_error_that_says_what_to_do(
    count: int, when: When, says: str
) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(alone=True))
    with pytest.raises(ArgumentError, match=rf"len\(loader\) says 5 batches, but {says}") as caught:
        list(even_steps(loader_of(count), exchange, when=when))
    assert "(rank 0 of 1)" in str(caught.value)
    assert "iter(loader)" in str(caught.value)


def shift_evenly(exchange: Exchange, count: int) -> None:
    for _ in even_steps(loader_of(count), exchange):
        exchange.shift(torch.ones(1))


@pytest.mark.ranks(3)
def test_the_other_ranks_are_told_of_a_wrong_length(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    with pytest.raises(ArgumentError if rank == 1 else ExchangeError) as caught:
        shift_evenly(exchange, 3 if rank == 1 else 5)
    assert "even_steps: len(loader) says 5 batches, but it ended after 3" in str(caught.value)
    assert "(rank 1 of 3)" in str(caught.value)


def test_where_the_length_is_wrong_iter_agrees_step_by_step() -> None:
    def program(adapter: Adapter) -> int:
        exchange = Exchange(Ring, adapter)
        return len(list(even_steps(iter(loader_of(3 + exchange.rank)), exchange)))

    assert simulate(3, program) == [3, 3, 3]


def test_each_loop_over_the_same_steps_agrees_anew() -> None:
    def program(adapter: Adapter) -> list[int]:
        exchange = Exchange(Ring, adapter)
        loader = [0, 1, 2]
        steps = even_steps(loader, exchange)
        found = [len(list(steps))]
        del loader[exchange.rank :]
        return [*found, len(list(steps)), len(list(steps))]

    assert simulate(2, program) == [[3, 0, 0]] * 2


def test_more_batches_than_the_shortest_length_are_left() -> None:
    assert len(list(even_steps(loader_of(7), Exchange(Ring, RawDDPAdapter(alone=True))))) == 5


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.ranks(2)
def test_loaders_over_streams_have_no_length_and_work(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    stream: Iterable[torch.Tensor] = DataLoader(Stream(), batch_size=1 + rank)
    assert len(list(even_steps(stream, exchange))) == 2


class Restless:
    """Yields again after its end, as some iterators do."""

    def __init__(self) -> None:
        self.calls = 0

    def __iter__(self) -> Restless:
        return self

    def __next__(self) -> int:
        self.calls += 1
        if self.calls == 2:
            raise StopIteration
        return self.calls


def test_an_iterator_that_has_ended_is_not_asked_again() -> None:
    def program(adapter: Adapter) -> list[int | None]:
        exchange = Exchange(Ring, adapter)
        loader = Restless() if exchange.rank == 0 else iter([1, 2, 3])
        return list(even_steps(loader, exchange, when="last"))

    assert simulate(2, program) == [[1, None, None], [1, 2, 3]]


def test_a_batch_that_is_none_is_a_batch() -> None:
    def program(adapter: Adapter) -> list[None]:
        return list(even_steps(iter([None, None]), Exchange(Ring, adapter)))

    assert simulate(2, program) == [[None, None]] * 2
