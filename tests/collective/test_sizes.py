"""Uneven sizes: asked, asked once, given or assumed, and never wrong without an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Mesh, Ring
from collectives.errors import ArgumentError, CollectivesError, ExchangeMismatch, TopologyError
from collectives.routes import Shapes
from collectives.testing import Simulation, simulate
from tests.support.worlds import World


def counts(adapter: Adapter, shapes: Shapes, mine: list[list[int]]) -> list[int]:
    """Gather ``mine[step][rank]`` numbers at each step; return the exchanges of each step."""
    exchange = Exchange(Ring, adapter)
    found, before = [], 0.0
    for sizes in mine:
        x = torch.full((sizes[exchange.rank],), float(exchange.rank))
        expected = [float(r) for r, size in enumerate(sizes) for _ in range(size)]
        assert exchange.all_gather(x, shapes=shapes).tolist() == expected
        now = exchange.stats()["exchanges"]
        found.append(int(now - before))
        before = now
    return found


UNEVEN = [[1, 2, 3], [1, 2, 3], [3, 2, 0], [3, 1, 1], [1, 2, 3]]


def test_sizes_are_asked_at_every_step_by_default(world: World) -> None:
    assert world(counts, 3, "discover", UNEVEN) == [[2] * 5] * 3


def test_sizes_are_asked_once_for_what_this_rank_has(world: World) -> None:
    steps = [[1, 2, 3], [1, 2, 3], [3, 1, 2], [1, 2, 3], [3, 1, 2]]
    # without tags nobody would notice that they changed, so they are asked
    expected = [2] * 5 if world.name == "batches" else [2, 1, 2, 1, 1]
    assert world(counts, 3, "once", steps) == [expected] * 3


def test_sizes_that_are_the_same_are_never_asked(world: World) -> None:
    assert world(counts, 3, "same", [[2, 2, 2], [3, 3, 3]]) == [[1, 1]] * 3


STALE = {
    "one rank alone": [[1, 2, 3], [1, 2, 4]],
    "known to each, but not together": [[1, 2, 3], [3, 1, 2], [1, 1, 3]],
}


@pytest.mark.parametrize("steps", STALE.values(), ids=STALE)
def test_sizes_that_hold_no_longer_are_a_mismatch_that_says_what_to_do(
    steps: list[list[int]],
) -> None:
    with pytest.raises(ExchangeMismatch, match="shapes='discover'"):
        simulate(3, counts, "once", steps)


@pytest.mark.parametrize("size", [2])
def test_unequal_sizes_are_a_mismatch_where_they_are_said_to_be_the_same(size: int) -> None:
    with pytest.raises(ExchangeMismatch, match=r"float32\[1\]"):
        simulate(size, counts, "same", [[1, 2]])


@pytest.mark.ranks(3)
def test_sizes_that_hold_no_longer_are_found_over_gloo_on_every_rank(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20)
    exchange.all_gather(torch.ones(rank + 1), shapes="once")
    changed = torch.ones(rank + 1 + (rank == 2))
    with pytest.raises(ExchangeMismatch, match="shapes='discover'"):
        exchange.all_gather(changed, shapes="once")


def always(adapter: Adapter) -> list[float]:
    """Headers compare whole signatures, so sizes may be asked once without tags too."""
    exchange = Exchange(Ring, adapter, verify="always")
    found = []
    for _ in range(2):
        exchange.all_gather(torch.ones(exchange.rank + 1), shapes="once")
        found.append(exchange.stats()["exchanges"])
    return found


def test_headers_notice_sizes_where_messages_have_no_tags() -> None:
    assert Simulation(2, tags=False).run(always) == [[2, 3]] * 2


ONES = torch.ones(4)
Refusal = tuple[Callable[[Exchange], object], type[CollectivesError], str]
REFUSALS: dict[str, Refusal] = {
    "no such axis": (lambda e: e.all_gather(ONES, axis="z"), TopologyError, "'y', 'x'"),
    "a number": (lambda e: e.all_gather({"a": ONES[0]}), ArgumentError, r"dim 0, got shape \(\)"),
    "no such dim": (lambda e: e.all_to_all(ONES, -2), ArgumentError, "dim -2"),
    "a name for a dim": (
        lambda e: e.all_gather(ONES, "x"),  # type: ignore[arg-type]
        ArgumentError,
        "dim must be an int, got 'x'",
    ),
    "no tensor": (lambda e: e.all_reduce([1.0]), ArgumentError, "float at tree"),
    "sparse": (lambda e: e.all_reduce(ONES.to_sparse()), ArgumentError, "layout"),
    "shapes": (
        lambda e: e.all_gather(ONES, shapes="even"),  # type: ignore[arg-type]
        ArgumentError,
        "'once', got 'even'",
    ),
    "too many sizes": (
        lambda e: e.reduce_scatter(ONES, sizes=[1] * 9), ArgumentError, "ints from 0 on"
    ),
    "a size below 0": (
        lambda e: e.all_to_all(ONES, sizes=[-1] * e.size), ArgumentError, "ints from 0 on"
    ),
    "no sizes": (
        lambda e: e.all_to_all(ONES, sizes=3),  # type: ignore[arg-type]
        ArgumentError,
        "got 3",
    ),
    "sizes that do not fit": (
        lambda e: e.all_gather(ONES, sizes=[3] * e.size), ArgumentError, "a tensor has 4"
    ),
    "parts that do not fit": (
        lambda e: e.reduce_scatter(ONES, sizes=[3] * e.size), ArgumentError, "a tensor has 4"
    ),
    "no such op": (
        lambda e: e.all_reduce(ONES, "min"),  # type: ignore[arg-type]
        ArgumentError,
        "got 'min'",
    ),
    "a mean of integers": (
        lambda e: e.all_reduce(ONES.long(), "mean"), ArgumentError, "torch.int64 have no mean"
    ),
    "a sum of flags": (lambda e: e.reduce_scatter(ONES.bool()), ArgumentError, "torch.bool"),
    "a largest complex number": (
        lambda e: e.all_reduce(ONES.to(torch.complex64), "max"), ArgumentError, "have no max"
    ),
    "a sum of float8": (
        lambda e: e.all_reduce(ONES.to(torch.float8_e5m2)), ArgumentError, "float8_e5m2"
    ),
    "no such source": (lambda e: e.broadcast(ONES, e.size), ArgumentError, "source must be in 0"),
    "a flag for a source": (lambda e: e.broadcast(ONES, False), ArgumentError, "got False"),
}  # fmt: skip


def refused(adapter: Adapter, name: str) -> None:
    exchange = Exchange(lambda size: Mesh((1, size), axes=("y", "x")), adapter)
    call, error, text = REFUSALS[name]
    with pytest.raises(error, match=text):
        call(exchange)
    assert exchange.stats()["exchanges"] == 0
    assert exchange.all_gather(torch.ones(1)).sum() == exchange.size


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", REFUSALS)
def test_bad_input_is_refused_before_anything_is_sent(world: World, name: str, size: int) -> None:
    world(refused, size, name)


def moved(adapter: Adapter, dtype: torch.dtype) -> bool:
    exchange = Exchange(Ring, adapter)
    x = (torch.arange(4) + exchange.rank).to(torch.uint8).view(dtype)
    gathered = exchange.all_gather(x).view(torch.uint8).tolist()
    expected = [r + i for r in range(exchange.size) for i in range(4)]
    spread = exchange.broadcast(x, 0).view(torch.uint8).tolist()
    return gathered == expected and spread == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bits8, torch.uint8])
def test_dtypes_that_are_storage_only_are_gathered(world: World, dtype: torch.dtype) -> None:
    assert world(moved, 3, dtype) == [True] * 3


def empty(adapter: Adapter) -> list[object]:
    exchange = Exchange(Ring, adapter)
    return [exchange.all_gather(()), exchange.all_to_all({}), exchange.all_reduce([None])]


def test_trees_without_tensors_come_back_as_they_are(world: World) -> None:
    assert world(empty, 3) == [[(), {}, [None]]] * 3


def different_ops(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    exchange.all_reduce(torch.ones(2), "sum" if exchange.rank else "max")


def test_ranks_that_reduce_in_different_ways_are_told() -> None:
    with pytest.raises(ExchangeMismatch, match="op='sum'"):
        simulate(2, different_ops)


def place(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    if exchange.rank:
        exchange.all_gather(torch.ones(1))


def test_errors_of_asking_name_the_line_that_called() -> None:
    with pytest.raises(ExchangeMismatch, match=r"all_gather\(dim=0\), sizes .*test_sizes.py:\d+"):
        simulate(2, place)
