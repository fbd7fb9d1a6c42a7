"""What collective operations bring: against one process that has what all ranks have."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Ring
from collectives.blocks import Op
from collectives.routes import Shapes
from collectives.schedules import SMALL
from collectives.testing import simulate
from collectives.topology import Topology
from tests.support.single import COLUMNS, LINES, REDUCTIONS, all_to_all, line, split, tensor
from tests.support.worlds import SIZES, World

OPS: tuple[Op, ...] = ("sum", "mean", "max")
EACH_LINE = pytest.mark.parametrize(("topology", "axis"), LINES, ids=str)
EACH_WIDTH = pytest.mark.parametrize("columns", COLUMNS)


def test_the_widths_take_both_ways() -> None:
    small, large = (columns * 8 for columns in COLUMNS)
    assert 7 * 15 * small < SMALL < large


def rows(rank: int) -> int:
    """Uneven, and one rank has none."""
    return (2, 1, 0, 3, 1, 2)[rank]


def moving(adapter: Adapter, topology: Topology, axis: str | None, columns: int) -> None:
    exchange = Exchange(topology, adapter)
    ranks = line(topology, exchange.rank, axis)
    here = ranks.index(exchange.rank)

    every = [tensor(r, rows(r), columns) for r in ranks]
    numbers = [torch.full((rows(r),), r) for r in ranks]
    tree = {"x": [every[here]], "n": [numbers[here]]}
    expected = torch.cat(every)
    for arguments in ({}, {"sizes": [rows(r) for r in ranks]}, {"shapes": "once"}):
        gathered = exchange.all_gather(tree, axis=axis, **arguments)
        assert gathered.keys() == tree.keys()
        assert torch.equal(gathered["x"][0], expected)
        assert torch.equal(gathered["n"][0], torch.cat(numbers))

    across = [tensor(r, 2, columns + r).t() for r in ranks]  # not contiguous
    assert torch.equal(exchange.all_gather(across[here], axis=axis), torch.cat(across))
    last = [x.t() for x in across]
    assert torch.equal(exchange.all_gather(last[here], -1, axis=axis), torch.cat(last, -1))
    even = [tensor(r, columns) for r in ranks]
    same = exchange.all_gather(even[here], axis=axis, shapes="same")
    assert torch.equal(same, torch.cat(even))

    for dim in (0, 1):
        xs = [tensor(r, *((5, columns) if dim == 0 else (1, columns + 1))) for r in ranks]
        assert torch.equal(exchange.all_to_all(xs[here], dim, axis=axis), all_to_all(xs, dim)[here])
        same = exchange.all_to_all(xs[here], dim, axis=axis, shapes="same")
        assert torch.equal(same, all_to_all(xs, dim)[here])

    for source in range(len(ranks)):
        found = exchange.broadcast((even[here], numbers[0]), source, axis=axis)
        assert torch.equal(found[0], even[source])
        assert torch.equal(found[1], numbers[0])


@EACH_WIDTH
@EACH_LINE
def test_what_is_gathered_exchanged_and_spread_is_bit_equal(
    world: World, topology: Topology, axis: str | None, columns: int
) -> None:
    world(moving, topology.size, topology, axis, columns)


def uneven_exchange(adapter: Adapter) -> None:
    """Rank r sends (r + 2 q) % 4 rows to rank q."""
    exchange = Exchange(Ring, adapter)
    here, size = exchange.rank, exchange.size
    sizes = [[(r + 2 * q) % 4 for q in range(size)] for r in range(size)]
    every = [tensor(r, sum(sizes[r]), 2).split(sizes[r]) for r in range(size)]
    expected = torch.cat([parts[here] for parts in every])
    asked: tuple[Shapes, ...] = ("discover", "once", "once")
    for shapes in asked:
        found = exchange.all_to_all(torch.cat(every[here]), sizes=sizes[here], shapes=shapes)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("size", SIZES)
def test_each_rank_sends_as_much_as_it_likes_to_each(world: World, size: int) -> None:
    world(uneven_exchange, size)


def reducing(adapter: Adapter, topology: Topology, axis: str | None, columns: int) -> list[str]:
    """Check all reductions; return digests of the bits of those that all ranks of a line have."""
    exchange = Exchange(topology, adapter)
    ranks = line(topology, exchange.rank, axis)
    here, count = ranks.index(exchange.rank), len(ranks)
    bits = []
    for dtype in (torch.float32, torch.float64):
        xs = [tensor(r, 5, columns, dtype=dtype) for r in ranks]
        doubles = [x.double() for x in xs]
        bound = 2 * count * torch.finfo(dtype).eps * REDUCTIONS["sum"]([x.abs() for x in doubles])
        for op in OPS:
            exact = REDUCTIONS[op](doubles)
            found = exchange.all_reduce({"x": [xs[here]]}, op, axis=axis)["x"][0]
            assert found.dtype is dtype
            assert torch.all((found - exact).abs() <= bound)
            bits.append(hashlib.sha256(found.detach().numpy().tobytes()).hexdigest())
            for dim in (0, -1):
                part = exchange.reduce_scatter(xs[here], dim, op, axis=axis)
                mine = split(exact, count, dim)[here]
                assert part.shape == mine.shape
                assert torch.all((part - mine).abs() <= split(bound, count, dim)[here])
            sizes = [5] + [0] * (count - 1)
            part = exchange.reduce_scatter(xs[here], 0, op, sizes=sizes, axis=axis)
            assert part.shape == (sizes[here], columns)
            if here == 0:
                assert torch.all((part - exact).abs() <= bound)
    return bits


@EACH_WIDTH
@EACH_LINE
def test_reductions_are_right_and_the_same_bits_on_every_rank(
    world: World, topology: Topology, axis: str | None, columns: int
) -> None:
    by_rank = world(reducing, topology.size, topology, axis, columns)
    for rank, bits in enumerate(by_rank):
        first = line(topology, rank, axis)[0]
        assert bits == by_rank[first]


def whole_numbers(adapter: Adapter) -> tuple[list[int], list[int], bool]:
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([exchange.rank, -exchange.rank, 7])
    flags = torch.tensor([exchange.rank == 1, False])
    return (
        exchange.all_reduce(x).tolist(),
        exchange.all_reduce(x, "max").tolist(),
        bool(exchange.all_reduce(flags, "max")[0]),
    )


@pytest.mark.parametrize("size", SIZES)
def test_integers_add_up_exactly_and_flags_have_a_maximum(world: World, size: int) -> None:
    total = sum(range(size))
    expected = ([total, -total, 7 * size], [size - 1, 0, 7], size > 1)
    assert world(whole_numbers, size) == [expected] * size


def in_rank_order(adapter: Adapter) -> bool:
    """Whether a small sum has the bits of adding one by one, beginning with rank 0."""
    exchange = Exchange(Ring, adapter)
    xs = [tensor(r, 100, dtype=torch.float32) for r in range(exchange.size)]
    total = xs[0].clone()
    for x in xs[1:]:
        total = total + x
    return torch.equal(exchange.all_reduce(xs[exchange.rank]), total)


@pytest.mark.parametrize("size", SIZES)
def test_a_small_sum_is_made_in_the_order_of_the_ranks(world: World, size: int) -> None:
    assert world(in_rank_order, size) == [True] * size


def not_a_number(adapter: Adapter) -> list[Tensor]:
    exchange = Exchange(Ring, adapter)
    mine = torch.full((3,), -float("inf"))
    mine[exchange.rank % 3] = float("nan") if exchange.rank == 1 else exchange.rank
    return [exchange.all_reduce(mine, "max"), exchange.all_reduce(mine)]


def test_what_is_no_number_reaches_all_ranks() -> None:
    for largest, total in simulate(3, not_a_number):
        assert torch.equal(largest.isnan(), torch.tensor([False, True, False]))
        assert largest[0] == 0
        assert largest[2] == 2
        assert torch.equal(total.isnan(), torch.tensor([False, True, False]))


def new_tensors(adapter: Adapter) -> bool:
    """Whether every result has a memory of its own."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(6)
    results = [
        exchange.all_gather(x),
        exchange.reduce_scatter(x),
        exchange.all_reduce(x, "max"),
        exchange.all_reduce(x),
        exchange.all_to_all(x),
        exchange.broadcast(x, 0),
    ]
    places = {y.untyped_storage().data_ptr() for y in (x, *results)}
    assert all(type(y) is Tensor and y.is_contiguous() for y in results)
    return len(places) == 7


@pytest.mark.parametrize("size", SIZES)
def test_results_are_never_views_of_the_input(world: World, size: int) -> None:
    assert world(new_tensors, size) == [True] * size


def traffic(adapter: Adapter, columns: int) -> list[float]:
    """Bytes that this rank sent in each operation, as multiples of what it has."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(exchange.size, columns)
    operations: list[Callable[[], object]] = [
        lambda: exchange.all_gather(x, shapes="same"),
        lambda: exchange.reduce_scatter(x),
        lambda: exchange.all_reduce(x),
        lambda: exchange.all_to_all(x, shapes="same"),
        lambda: exchange.broadcast(x, 0),
    ]
    sent, before = [], 0.0
    for operation in operations:
        operation()
        now = exchange.stats()["bytes_sent"]
        sent.append((now - before) / x.nbytes)
        before = now
    return sent


@pytest.mark.parametrize("size", SIZES)
def test_large_data_is_sent_no_more_often_than_it_must(world: World, size: int) -> None:
    others = size - 1
    for rank, sent in enumerate(world(traffic, size, 70_000)):
        spread = [0.0, 2 * others / size][rank == 0]
        least = [others, others / size, 2 * others / size, others / size]
        if size == 2:  # a large vector each way, at once, instead of two halves one after the other
            least[2], spread = 1, float(rank == 0)
        assert sent[:4] == pytest.approx(least)
        if rank == 0:
            assert sent[4] == pytest.approx(spread)
        else:
            assert sent[4] <= others / size
