"""A: values, sides, order. See README.md for the entries and their public reports."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Mesh, Ring, compat
from collectives.errors import ArgumentError, ExchangeMismatch
from collectives.testing import SimulatedAdapter, Simulation
from collectives.testing.pool import RankPool
from tests.support import plain
from tests.support.worlds import SIZES, World

TAGS = pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])


def one(value: float, *, requires_grad: bool = False) -> Tensor:
    return torch.tensor([float(value)], requires_grad=requires_grad)


def sides_of(
    to_left: Tensor, to_right: Tensor, from_left: Tensor, from_right: Tensor
) -> list[float]:
    """Backpropagate unequal weights per rank and side; return values and gradients."""
    rank = int(to_left.item()) // 100
    loss = (rank + 1) * (1000 * from_left + 10 * from_right)
    loss.sum().backward()
    assert to_left.grad is not None
    assert to_right.grad is not None
    return [x.item() for x in (from_left, from_right, to_left.grad, to_right.grad)]


def right_sides(rank: int, size: int) -> list[float]:
    left, right = (rank - 1) % size, (rank + 1) % size
    return [100.0 * left + 2, 100.0 * right + 1, 10.0 * (left + 1), 1000.0 * (right + 1)]


def both_sides(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank
    to_left, to_right = (
        one(100 * rank + 1, requires_grad=True),
        one(100 * rank + 2, requires_grad=True),
    )
    received = exchange.exchange(to_left=to_left, to_right=to_right)
    return sides_of(to_left, to_right, *received)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_each_result_and_gradient_comes_from_its_own_side(world: World, size: int) -> None:
    """C01: two results swapped at 2 ranks. pytorch/pytorch#2744, NVIDIA/nccl#389."""
    assert world(both_sides, size) == [right_sides(rank, size) for rank in range(size)]


@pytest.mark.ranks(1, 2, 3, 4)
def test_the_names_of_open_clip_give_the_right_sides_too(rank: int, world_size: int) -> None:
    """C01, through collectives.compat."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    to_left, to_right = (
        one(100 * rank + 1, requires_grad=True),
        one(100 * rank + 2, requires_grad=True),
    )
    from_right, from_left = compat.neighbour_exchange_bidir_with_grad(
        left, right, to_left, to_right
    )
    got = sides_of(to_left, to_right, from_left, from_right)
    assert got == right_sides(rank, world_size)


@pytest.mark.ranks(2, 3)
def test_the_plain_form_swaps_the_sides_on_two_ranks_only(rank: int, world_size: int) -> None:
    """C01, control."""
    to_left, to_right = (
        one(100 * rank + 1, requires_grad=True),
        one(100 * rank + 2, requires_grad=True),
    )
    from_right, from_left = plain.Exchanged.apply(to_left, to_right)  # type: ignore[no-untyped-call]
    got = sides_of(to_left, to_right, from_left, from_right)
    expected = right_sides(rank, world_size)
    assert got == ([expected[i] for i in (1, 0, 3, 2)] if world_size == 2 else expected)


def alone(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    to_left, to_right = one(1, requires_grad=True), one(2, requires_grad=True)
    from_left, from_right = exchange.exchange(to_left=to_left, to_right=to_right)
    assert (from_left.item(), from_right.item()) == (2, 1)
    moved = [exchange.shift(to_left), exchange.permute(to_left, [(0, 0)]), from_left, from_right]
    moved.append(exchange.start_shift(to_left, 7).wait())
    memory = {x.data_ptr() for x in (to_left, to_right, *moved)}
    assert len(memory) == 2 + len(moved), "a result is an alias"
    exchange.join(sum(moved, torch.zeros(1)).sum()).backward()
    assert to_left.grad is not None
    return to_left.grad.item() == 4


def test_a_ring_of_one_gives_copies(world: World) -> None:
    """C03: peer is self. pytorch/pytorch#106164, pytorch/pytorch#83912, NVIDIA/physicsnemo#1400."""
    assert world(alone, 1) == [True]


def test_one_process_needs_no_process_group() -> None:
    """C03, without any group: a script on one device. llnl/Aluminum#89, Xilinx/ACCL#97."""
    assert alone(RawDDPAdapter())


def on_an_axis_of_one(adapter: Adapter) -> bool:
    exchange = Exchange(Mesh((1, 2), axes=("y", "x"), periodic=True), adapter)
    mine = one(exchange.rank)
    from_left, from_right = exchange.exchange(to_left=mine, to_right=10 * mine, axis="y")
    return (from_left.item(), from_right.item()) == (10 * exchange.rank, exchange.rank)


def test_an_axis_of_one_gives_copies(world: World) -> None:
    """C03, on one axis of a mesh: a domain that is not split along it."""
    assert world(on_an_axis_of_one, 2) == [True, True]


@pytest.mark.ranks(1)
def test_the_plain_form_fails_on_one_rank() -> None:
    """C03, control."""
    with pytest.raises(RuntimeError, match="not connected"):
        plain.shift(torch.ones(1))


def unordered(adapter: Adapter) -> dict[str, float]:
    exchange = Exchange(Ring, adapter)
    rank, names = exchange.rank, ["a", "b", "c"]
    order = names[rank % 3 :] + names[: rank % 3]  # as from a set: another order in each process
    tree = {name: one(10 * rank + names.index(name), requires_grad=True) for name in order}
    arrived = exchange.shift(tree)
    assert list(arrived) == order
    (arrived["a"] * (rank + 1)).sum().backward()
    assert tree["a"].grad is not None
    assert tree["a"].grad.item() == (rank + 1) % exchange.size + 1
    return {name: tensor.item() for name, tensor in arrived.items()}


@pytest.mark.parametrize("size", SIZES)
def test_a_mapping_in_another_order_on_each_rank_arrives_by_name(world: World, size: int) -> None:
    """C06: another order on two ranks, equal shapes; here within one call. NVIDIA/apex#19."""
    for rank, arrived in enumerate(world(unordered, size)):
        source = (rank - 1) % size
        assert arrived == {"a": 10 * source, "b": 10 * source + 1, "c": 10 * source + 2}


def out_of_order(adapter: Adapter) -> Tensor:
    first, second = Exchange(Ring, adapter, name="a"), Exchange(Ring, adapter, name="b")
    if first.rank == 0:
        first, second = second, first
    first.shift(one(1), timeout=2)
    return second.shift(one(2), timeout=2)


@TAGS
def test_two_exchanges_in_another_order_are_named_not_swapped(tags: bool) -> None:
    """C06, two calls. NVIDIA/nccl#389, pytorch/pytorch#113376, pytorch/pytorch#50092."""
    with pytest.raises(ExchangeMismatch, match=r"differ in name: [ab] / [ab]"):
        Simulation(2, tags=tags).run(out_of_order)


def error_of_two_in_another_order() -> str:
    with pytest.raises(ExchangeMismatch) as caught:
        out_of_order(RawDDPAdapter())
    return str(caught.value)


def test_two_exchanges_in_another_order_are_named_over_gloo(rank_pool: RankPool) -> None:
    """C06, two calls: their tags do not match, so nothing wrong is received."""
    errors = rank_pool.run(error_of_two_in_another_order, size=2)
    rank_pool.discard()
    assert all("the ranks are in different exchanges; name: " in error for error in errors)


@pytest.mark.ranks(2)
def test_the_plain_form_swaps_two_exchanges_in_another_order(rank: int) -> None:
    """C06, control."""
    first, second = (10.0, 20.0) if rank == 0 else (20.0, 10.0)
    assert plain.shift(one(first)).item() == second  # rank 0's 10 met rank 1's 20


def many_in_flight(adapter: Adapter) -> bool:
    """Started exchanges are waited for in another order on each rank."""
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    with torch.no_grad():
        for _ in range(1030 if size == 2 else 3):  # a tag has 1024 sequence numbers
            exchange.shift(one(rank))
        pending = [exchange.start_shift(one(100 * k + rank), k) for k in range(-3, 4)]
        arrived = [p.wait().item() for p in (pending if rank % 2 else reversed(pending))]
    expected = [100 * k + (rank - k) % size for k in range(-3, 4)]
    return arrived == (expected if rank % 2 else expected[::-1])


@pytest.mark.parametrize("size", [2, 3])
def test_many_exchanges_in_flight_keep_apart_with_tags_and_without(world: World, size: int) -> None:
    """C09: tags work on gloo and not on NCCL. pytorch/gloo#308."""
    assert all(world(many_in_flight, size))


@pytest.mark.ranks(3)
def test_an_exchange_and_a_collective_of_ddp_may_interleave(rank: int) -> None:
    """C09: messages never answer a collective of the same group."""
    exchange = Exchange(Ring, RawDDPAdapter())
    with torch.no_grad():
        pending = exchange.start_shift(one(rank))
        total = one(rank)
        dist.all_reduce(total)
        assert exchange.shift(one(10 * rank), -1).item() == 10 * ((rank + 1) % 3)
    assert total.item() == 3
    assert pending.wait().item() == (rank - 1) % 3


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("pair", [(0, -1), (-1, 0), (0, 5), (7, 0)])
def test_a_peer_out_of_range_is_refused_before_anything_is_posted(
    size: int, pair: tuple[int, int]
) -> None:
    """C13: negative or too large peer. No public report: ``rank - 1`` at the edge."""

    def program(adapter: SimulatedAdapter) -> None:
        exchange = Exchange(Ring, adapter)
        with pytest.raises(ArgumentError, match=f"pairs must hold ranks in 0..{size - 1}"):
            exchange.permute(one(0), [pair])
        assert exchange.stats()["exchanges"] == 0

    simulation = Simulation(size)
    simulation.run(program)
    assert not simulation.traffic


@pytest.mark.ranks(1, 3)
def test_a_global_rank_out_of_range_is_refused_with_the_remedy(rank: int, world_size: int) -> None:
    """C13, through collectives.compat; plain torch takes such a peer and waits."""
    dist.P2POp(dist.isend, one(0), -1)  # control: accepted
    for peer in (rank - world_size - 1, world_size):
        with pytest.raises(ArgumentError, match=r"on a ring of n: \(rank - 1\) % n"):
            compat.neighbour_exchange(peer, peer, one(0))


def at_the_edge(adapter: Adapter) -> list[float]:
    exchange = Exchange(lambda size: Ring(size, periodic=False), adapter)
    return [exchange.shift(one(exchange.rank), offset, fill=-1).item() for offset in (-1, 1, 100)]


@pytest.mark.parametrize("size", SIZES)
def test_an_open_end_is_filled_and_nothing_wraps(world: World, size: int) -> None:
    """C13: what ``rank - 1`` means at the edge is said by ``periodic``, not by arithmetic."""
    for rank, arrived in enumerate(world(at_the_edge, size)):
        assert arrived == [rank + 1 if rank + 1 < size else -1, rank - 1, -1]
