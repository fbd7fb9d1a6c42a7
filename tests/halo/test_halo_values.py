"""What a halo holds: each rank's part of the field that torch has padded, on every transport."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Mesh, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation, simulate
from tests.support.fields import FIELDS, Field, padded
from tests.support.worlds import SIZES, World

MODES = ("zeros", "replicate", "reflect")
WIDTHS = ((1, 1), (2, 0), (0, 2))


def halos(adapter: Adapter, field: Field) -> list[Tensor]:
    exchange = Exchange(field.mesh, adapter)
    x = field.shard(field.whole(), exchange.rank)
    return [
        exchange.halo_exchange(x, field.dims, width, mode)  # type: ignore[arg-type]
        for mode in MODES
        for width in WIDTHS
    ]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: repr(field.mesh))
def test_a_halo_is_this_ranks_part_of_the_field_that_torch_pads(world: World, field: Field) -> None:
    by_rank = world(halos, field.mesh.size, field)
    cases = [(mode, width) for mode in MODES for width in WIDTHS]
    for rank, results in enumerate(by_rank):
        for (mode, width), result in zip(cases, results, strict=True):
            widths = [width] * len(field.sizes)
            expected = field.shard(padded(field, field.whole(), widths, mode), rank, widths)
            assert torch.equal(result, expected), (rank, mode, width)


def rings(adapter: Adapter, periodic: bool) -> list[float]:
    exchange = Exchange(lambda size: Ring(size, periodic=periodic), adapter)
    mine = torch.tensor([10.0 * exchange.rank, 10.0 * exchange.rank + 1])
    got: list[float] = exchange.halo_exchange(mine, {0: None}).tolist()
    return got


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_a_ring_of_any_size_brings_the_rows_next_door(
    world: World, size: int, periodic: bool
) -> None:
    for rank, got in enumerate(world(rings, size, periodic)):
        left = 10.0 * ((rank - 1) % size) + 1 if periodic or rank > 0 else 0.0
        right = 10.0 * ((rank + 1) % size) if periodic or rank < size - 1 else 0.0
        assert got == [left, 10.0 * rank, 10.0 * rank + 1, right]


def widths_of_their_own(adapter: Adapter) -> bool:
    field = FIELDS[3]
    exchange = Exchange(field.mesh, adapter)
    whole = field.whole()
    x = field.shard(whole, exchange.rank)
    widths = [(2, 0), (1, 3)]
    expected = field.shard(padded(field, whole, widths, "zeros"), exchange.rank, widths)
    first = exchange.halo_exchange(x, {1: "y", 2: "x"}, {1: (2, 0), 2: (1, 3)})
    other = exchange.halo_exchange(x.mT, {1: "x", -1: 0}, {-1: (2, 0), 1: (1, 3)})
    return torch.equal(first, expected) and torch.equal(other.mT, expected)


def test_each_dim_may_have_a_width_of_its_own_and_dims_any_order() -> None:
    assert all(simulate(4, widths_of_their_own))


def kinds(adapter: Adapter, dtype: torch.dtype) -> bool:
    exchange = Exchange(Ring, adapter)
    x = (torch.arange(6).reshape(3, 2) * exchange.rank).to(dtype)
    strided = x.mT.contiguous().mT
    got = exchange.halo_exchange(strided, {0: "ring"}, (1, 0))
    left = exchange.shift(x[-1:])
    return torch.equal(got, torch.cat([left, x])) and got.dtype is dtype


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64])
def test_every_dtype_and_any_strides_travel(dtype: torch.dtype) -> None:
    assert all(simulate(3, kinds, dtype))


def test_corners_take_two_messages_for_each_dim_and_nothing_more() -> None:
    def program(adapter: Adapter) -> tuple[float, int]:
        exchange = Exchange(Mesh((3, 3), axes=("y", "x"), periodic=True), adapter)
        x = torch.zeros(4, 5)
        exchange.halo_exchange(x, {0: "y", 1: "x"})
        before = exchange.stats()
        exchange.halo_exchange(x, {0: "y", 1: "x"})
        after = exchange.stats()
        return (
            after["messages_sent"] - before["messages_sent"],
            int(after["bytes_sent"] - before["bytes_sent"]),
        )

    # Rows of 5, then columns of 4 and two corners.
    assert Simulation(9).run(program) == [(4, 4 * (2 * 5 + 2 * 6))] * 9


def test_nothing_travels_where_nothing_is_needed() -> None:
    def program(adapter: Adapter) -> bool:
        exchange = Exchange(Ring, adapter)
        x = torch.ones(3)
        exchange.halo_exchange(x, {0: "ring"}, 0)
        before = exchange.stats()["exchanges"]
        result = exchange.halo_exchange(x, {0: "ring"}, 0)
        assert exchange.stats()["exchanges"] == before
        return torch.equal(result, x) and result.data_ptr() != x.data_ptr()

    assert all(simulate(2, program))


def equal_shards(adapter: Adapter) -> tuple[list[float], float]:
    exchange = Exchange(Ring, adapter)
    x = torch.full((2,), float(exchange.rank))
    padded = exchange.halo_exchange(x, {0: "ring"}, shapes="same")
    return padded.tolist(), exchange.stats()["exchanges"]


def test_equal_shards_are_not_asked_for(world: World) -> None:
    assert world(equal_shards, 3) == [
        ([2.0, 0.0, 0.0, 1.0], 1.0),
        ([0.0, 1.0, 1.0, 2.0], 1.0),
        ([1.0, 2.0, 2.0, 0.0], 1.0),
    ]


def test_shards_that_are_not_equal_after_all_are_a_mismatch() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        exchange.halo_exchange(torch.zeros(2 + exchange.rank), {0: "ring"}, shapes="same")

    with pytest.raises(ExchangeMismatch, match=r"shards all of \(2,\)"):
        simulate(2, program)


@pytest.mark.parametrize("shapes", ["once", "discover"])
def test_sizes_may_change_on_one_rank_where_nothing_would_notice(shapes: str) -> None:
    """Without tags a rank that asks anew would be taken for one that sends: so all ask always."""

    def program(adapter: Adapter) -> list[float]:
        exchange = Exchange(Ring, adapter, verify="off")
        padded = torch.empty(0)
        for step in range(3):
            mine = torch.full((1 + step * exchange.rank,), float(exchange.rank))
            padded = exchange.halo_exchange(mine, {0: "ring"}, shapes=shapes)  # type: ignore[arg-type]
        result: list[float] = padded.tolist()
        return result

    ends = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, 0.0]]
    assert Simulation(2, tags=False).run(program) == ends


def test_sizes_that_change_on_one_rank_alone_are_discovered() -> None:
    def program(adapter: Adapter) -> list[list[float]]:
        exchange = Exchange(Ring, adapter)
        results = []
        for step in range(3):
            mine = torch.full((1 + step * exchange.rank,), float(10 * step + exchange.rank))
            padded = exchange.halo_exchange(mine, {0: "ring"}, (1, 0), shapes="discover")
            results.append(padded.tolist())
        return results

    assert simulate(2, program) == [
        [[1.0, 0.0], [11.0, 10.0], [21.0, 20.0]],
        [[0.0, 1.0], [10.0, 11.0, 11.0], [20.0, 21.0, 21.0, 21.0]],
    ]


@pytest.mark.parametrize("verify", ["always", "off"])
def test_every_way_of_verifying_carries_halos_and_empty_slabs(
    world: World, verify: Literal["always", "off"]
) -> None:
    for rank, got in enumerate(world(_verified, 3, verify)):
        assert got == [10.0 * max(rank - 1, 0), 10.0 * rank]


def _verified(adapter: Adapter, verify: Literal["always", "off"]) -> list[float]:
    exchange = Exchange(lambda size: Ring(size, periodic=False), adapter, verify=verify)
    x = torch.tensor([10.0 * exchange.rank], requires_grad=True)
    padded = exchange.halo_exchange(x, {0: "ring"}, (1, 0), "replicate")
    factors = torch.tensor([2.0, 1.0])
    exchange.join((padded * factors).sum()).backward()
    assert x.grad is not None
    # Of its right neighbour's halo comes a factor of 2; the first rank's halo is its own row.
    last, first = exchange.rank == exchange.size - 1, exchange.rank == 0
    assert x.grad.item() == 1.0 + 2.0 * (not last) + 2.0 * first
    values: list[float] = padded.tolist()
    return values
