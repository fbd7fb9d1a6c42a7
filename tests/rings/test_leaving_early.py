"""Loops that end before the last block, or are never begun: no rank waits in vain."""

from __future__ import annotations

import pytest
import torch

from collectives import Adapter, Exchange, Graph, Ring
from collectives.errors import ArgumentError, ExchangeError, PendingDropped, TopologyError
from tests.support.worlds import SIZES, World


class LeftError(Exception):
    """What the body of a loop raises."""


def leave(how: str) -> None:
    if how == "raise":
        raise LeftError


def left(adapter: Adapter, how: str, prefetch: int) -> tuple[int, float, float]:
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    mine = torch.tensor(float(rank + 1), requires_grad=True)
    seen = torch.zeros(())
    blocks = exchange.ring_pass(mine, prefetch=prefetch)
    try:
        for hop, (_, block) in enumerate(blocks):
            seen = seen + block
            if hop == rank:
                leave(how)
                break
    except LeftError:
        pass
    del blocks
    hops = int(exchange.stats()["exchanges"])
    after = exchange.shift(torch.tensor(float(rank)))
    assert after.item() == (rank - 1) % size
    exchange.join(seen).backward()
    assert mine.grad is not None
    return hops, seen.item(), mine.grad.item()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["break", "raise"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_ranks_may_leave_at_different_blocks(
    world: World, size: int, how: str, prefetch: int
) -> None:
    results = world(left, size, how, prefetch)
    # rank r took r + 1 blocks: those of ranks r, r - 1, ..., 0
    assert [hops for hops, _, _ in results] == [size - 1] * size
    assert [seen for _, seen, _ in results] == [sum(range(1, r + 2)) for r in range(size)]
    assert [grad for _, _, grad in results] == [size - r for r in range(size)]


def dropped(adapter: Adapter) -> tuple[float, float]:
    exchange = Exchange(Ring, adapter)
    mine = torch.tensor(float(exchange.rank))
    exchange.ring_pass(mine)  # never begun: nothing happens
    begun = exchange.ring_pass(mine)
    next(begun)
    del begun
    counted = exchange.stats()["exchanges"]
    return counted, exchange.shift(mine).item()


@pytest.mark.parametrize("size", SIZES)
def test_a_dropped_iterator_has_run_all_its_hops(world: World, size: int) -> None:
    results = world(dropped, size)
    assert results == [(size - 1, (rank - 1) % size) for rank in range(size)]


def under_no_grad(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)
    mine = torch.tensor(1.0, requires_grad=True)
    with torch.no_grad():
        blocks = exchange.ring_pass(mine)
        next(blocks)
    blocks.close()  # under grad by now; its hops are not
    exchange.check_backward()
    return exchange.shift(mine).item()


@pytest.mark.parametrize("size", SIZES)
def test_hops_run_in_the_grad_mode_of_the_call(world: World, size: int) -> None:
    assert world(under_no_grad, size) == [1.0] * size


def written_to(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    try:
        for _, block in exchange.ring_pass(torch.ones(3)):
            block.add_(1)
    except ExchangeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("size", [2, 3])
def test_writing_to_a_block_on_its_way_is_named(world: World, size: int) -> None:
    assert all("modified in place between" in text for text in world(written_to, size))


def left_after_writing(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    for _, block in exchange.ring_pass(torch.ones(3)):
        block.add_(1)
        break
    with pytest.raises(ExchangeError, match=r"ring_pass.*modified in place between") as caught:
        exchange.shift(torch.ones(1))
    return str(exchange.shift(torch.ones(1)).item()) + str(caught.value)


@pytest.mark.parametrize("size", [2, 3])
def test_writing_before_leaving_is_named_by_the_next_call(world: World, size: int) -> None:
    assert all("test_leaving_early.py:" in text for text in world(left_after_writing, size))


def refused(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2)
    with pytest.raises(ArgumentError, match=r"ring_pass.*every leaf of the tree must be a tensor"):
        exchange.ring_pass([x, 3])
    with pytest.raises(ArgumentError, match=r"ring_pass: a meta tensor"):
        exchange.ring_pass(x.to("meta"))
    for wrong in (-1, True, 1.5):
        with pytest.raises(ArgumentError, match="ring_pass: prefetch must be a number of blocks"):
            exchange.ring_pass(x, prefetch=wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="ring_pass: shapes must be 'same'"):
        exchange.ring_pass(x, shapes="any")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="ring_pass: axis must be 'ring'"):
        exchange.ring_pass(x, axis="x")
    with pytest.raises(TopologyError, match="ring_pass"):
        Exchange(lambda size: Graph(size, ()), adapter).ring_pass(x)
    exchange.start_shift(x)
    with pytest.raises(PendingDropped):
        exchange.ring_pass(x)


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_go_round_is_refused_at_every_size(world: World, size: int) -> None:
    world(refused, size)
