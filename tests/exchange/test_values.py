"""What arrives where: laws 1, 3, 4 and 5, against plain arithmetic on the ranks."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Mesh, Received, Ring
from collectives.topology import Cartesian
from tests.support.worlds import SIZES, World

MESHES = [
    Mesh((1, 2), axes=("y", "x")),
    Mesh((2, 2), axes=("y", "x"), periodic=True),
    Mesh((3, 2), axes=("y", "x"), periodic=(True, False)),
    Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, True)),
]
OFFSETS = (-7, -2, -1, 0, 1, 2, 6)


def mark(rank: int, side: int = 0) -> Tensor:
    """A tensor that tells who made it, and for which side."""
    return torch.arange(6, dtype=torch.float64).reshape(2, 3) + 100 * rank + 10_000 * side


def shifts(adapter: Adapter, topology: Cartesian) -> list[tuple[str, int, Tensor]]:
    exchange = Exchange(topology, adapter)
    return [
        (axis, offset, exchange.shift(mark(exchange.rank), offset, axis=axis, fill=-1))
        for axis in topology.axes
        for offset in OFFSETS
    ]


def check_shifts(topology: Cartesian, by_rank: list[list[tuple[str, int, Tensor]]]) -> None:
    for rank, results in enumerate(by_rank):
        for axis, offset, arrived in results:
            source = topology.neighbours(rank, topology.axes.index(axis), offset).source
            expected = torch.full((2, 3), -1.0).double() if source is None else mark(source)
            assert torch.equal(arrived, expected), (rank, axis, offset)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_a_shift_on_a_ring_brings_what_its_source_sent(
    world: World, size: int, periodic: bool
) -> None:
    ring = Ring(size, periodic=periodic)
    check_shifts(ring, world(shifts, size, ring))


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_a_shift_on_a_mesh_stays_on_its_line(world: World, mesh: Mesh) -> None:
    check_shifts(mesh, world(shifts, mesh.size, mesh))


def there_and_back(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    mine = mark(exchange.rank)
    return all(torch.equal(exchange.shift(exchange.shift(mine, d), -d), mine) for d in range(-4, 5))


@pytest.mark.parametrize("size", SIZES)
def test_a_shift_and_its_opposite_are_the_identity_on_a_periodic_axis(
    world: World, size: int
) -> None:
    assert world(there_and_back, size) == [True] * size


def both_ways(adapter: Adapter, topology: Cartesian) -> list[Received[Tensor, Tensor]]:
    exchange = Exchange(topology, adapter)
    to_left, to_right = mark(exchange.rank, 1), mark(exchange.rank, 2)
    return [
        exchange.exchange(to_left=to_left, to_right=to_right, axis=axis) for axis in topology.axes
    ]


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_what_was_meant_for_my_left_arrives_as_its_from_right(
    world: World, size: int, periodic: bool
) -> None:
    """Law 4. The copied function swaps the sides on two ranks, 100 of 100 times."""
    ring = Ring(size, periodic=periodic)
    for rank, (received,) in enumerate(world(both_ways, size, ring)):
        left, right = ring.left(rank), ring.right(rank)
        nothing = torch.zeros(2, 3).double()
        assert torch.equal(received.from_left, nothing if left is None else mark(left, 2))
        assert torch.equal(received.from_right, nothing if right is None else mark(right, 1))
        assert received.from_left is received[0]


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_an_exchange_on_a_mesh_meets_the_neighbours_on_its_axis(world: World, mesh: Mesh) -> None:
    for rank, results in enumerate(world(both_ways, mesh.size, mesh)):
        for axis, received in zip(mesh.axes, results, strict=True):
            left, right = mesh.shift(rank, axis)
            nothing = torch.zeros(2, 3).double()
            assert torch.equal(received.from_left, nothing if left is None else mark(left, 2))
            assert torch.equal(received.from_right, nothing if right is None else mark(right, 1))


def one_side(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    mine = torch.tensor([float(exchange.rank)])
    only_right = exchange.exchange(to_left=None, to_right=mine)
    only_left = exchange.exchange(to_left=mine, to_right=None)
    neither = exchange.exchange(to_left=None, to_right=None)
    assert only_right.from_right is None
    assert only_left.from_left is None
    assert neither == (None, None)
    return [only_right.from_left.item(), only_left.from_right.item()]


@pytest.mark.parametrize("size", SIZES)
def test_one_side_may_be_left_out(world: World, size: int) -> None:
    expected = [[(r - 1) % size, (r + 1) % size] for r in range(size)]
    assert world(one_side, size) == expected


def permuted(adapter: Adapter, pairs: list[tuple[int, int]]) -> Tensor:
    exchange = Exchange(Ring, adapter)
    return exchange.permute(mark(exchange.rank), pairs, fill=7)


@pytest.mark.parametrize(
    ("size", "pairs"),
    [
        (1, []),
        (1, [(0, 0)]),
        (2, [(0, 1)]),
        (2, [(1, 0), (0, 1)]),
        (3, [(2, 0), (0, 0)][:1]),
        (3, [(0, 2), (1, 1)]),
        (5, [(0, 4), (4, 2), (2, 0), (3, 3)]),
    ],
)
def test_a_permutation_fills_what_is_no_destination(
    world: World, size: int, pairs: list[tuple[int, int]]
) -> None:
    sources = {destination: source for source, destination in pairs}
    for rank, arrived in enumerate(world(permuted, size, pairs)):
        source = sources.get(rank)
        expected = torch.full((2, 3), 7.0).double() if source is None else mark(source)
        assert torch.equal(arrived, expected)


class Pair(NamedTuple):
    keys: Tensor
    values: Tensor


@dataclasses.dataclass
class Block:
    data: Tensor
    mask: Tensor | None


@torch.no_grad()
def trees(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    source = (exchange.rank - 1) % exchange.size

    def build(rank: int) -> dict[str, object]:
        return {
            "tensor": mark(rank),
            "list": [mark(rank, 1), torch.arange(5) + rank],
            "pair": Pair(mark(rank, 2), mark(rank, 3).float()),
            "blocks": (Block(mark(rank, 4), None), Block(mark(rank, 5), mark(rank) > 2)),
            "nothing": None,
            "empty": (),
        }

    arrived, expected = exchange.shift(build(exchange.rank)), build(source)
    assert isinstance(arrived["pair"], Pair)
    assert repr(arrived) == repr(expected)
    pending = exchange.start_shift(build(exchange.rank))
    assert repr(pending.wait()) == repr(expected)
    return True


@pytest.mark.parametrize("size", SIZES)
def test_trees_come_back_as_they_were_built(world: World, size: int) -> None:
    assert all(world(trees, size))


def many_sizes(adapter: Adapter) -> bool:
    """Small leaves are packed, large ones go singly; both sides and several dtypes at once."""
    exchange = Exchange(Ring, adapter)

    def build(rank: int, side: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(10 * rank + side)
        shapes = [(3,), (), (0, 4), (40_000,), (5, 7), (20_000, 2), (1,)]
        floats = [torch.randn(s, generator=generator) for s in shapes]
        return floats + [(10 * x).int() for x in floats] + [x > 0 for x in floats]

    rank, size = exchange.rank, exchange.size
    left, right = (rank - 1) % size, (rank + 1) % size
    for _ in range(3):  # the second time with kept buffers
        received = exchange.exchange(to_left=build(rank, 0), to_right=build(rank, 1))
        for got, sent in (
            (received.from_right, build(right, 0)),
            (received.from_left, build(left, 1)),
        ):
            assert all(
                torch.equal(g, s) and g.dtype == s.dtype for g, s in zip(got, sent, strict=True)
            )
    return True


@pytest.mark.parametrize("size", SIZES)
def test_leaves_of_all_sizes_arrive_bit_equal(world: World, size: int) -> None:
    assert all(world(many_sizes, size))


def explained(adapter: Adapter) -> str:
    exchange = Exchange(Ring(3), adapter)
    before = exchange.explain("exchange")
    assert "*" not in before
    assert exchange.rank < 3
    return exchange.explain("shift", offset=2)


def test_explain_says_who_sends_what_to_whom(world: World) -> None:
    texts = world(explained, 3)
    assert texts[1].splitlines() == [
        "shift(offset=2, axis='ring') on 3 ranks",
        "  rank 0: sends tree to 2; gets tree of 1",
        "* rank 1: sends tree to 0; gets tree of 2",
        "  rank 2: sends tree to 1; gets tree of 0",
    ]


def counted(adapter: Adapter) -> dict[str, float]:
    exchange = Exchange(Ring, adapter)
    exchange.exchange(to_left=torch.ones(4), to_right=torch.ones(2, dtype=torch.int8))
    exchange.shift([torch.ones(3), torch.ones(5)])
    return exchange.stats()


@pytest.mark.parametrize("size", SIZES)
def test_stats_count_what_went_over_the_wire(world: World, size: int) -> None:
    for stats in world(counted, size):
        times = {name: stats.pop(name) for name in list(stats) if name.endswith(("seconds", "_ms"))}
        assert times.keys() == {
            f"{operation}{name}"
            for operation in ("", "exchange/", "shift/")
            for name in ("seconds", "wait_ms")
        }
        assert all(0 <= seconds < 60_000 for seconds in times.values())
        assert times["wait_ms"] == times["exchange/wait_ms"] + times["shift/wait_ms"]
        alone = size == 1
        assert stats == {
            "exchanges": 2,
            "messages_sent": 0 if alone else 3,
            "bytes_sent": 0 if alone else 50,
            "bytes_received": 0 if alone else 50,
            "bytes": 0 if alone else 100,
            "exchange/exchanges": 1,
            "exchange/messages_sent": 0 if alone else 2,
            "exchange/bytes_sent": 0 if alone else 18,
            "exchange/bytes_received": 0 if alone else 18,
            "exchange/bytes": 0 if alone else 36,
            "shift/exchanges": 1,
            "shift/messages_sent": 0 if alone else 1,
            "shift/bytes_sent": 0 if alone else 32,
            "shift/bytes_received": 0 if alone else 32,
            "shift/bytes": 0 if alone else 64,
        }
