"""What a user's trial of the operations found, each as it should be."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from collectives import Adapter, Exchange, Graph, Ring
from collectives.errors import ArgumentError, ExchangeError, ExchangeMismatch
from collectives.testing import simulate
from tests.support.worlds import SIZES, World


def writes_to_blocks(adapter: Adapter, prefetch: int) -> str:
    exchange = Exchange(Ring, adapter)

    def write() -> None:
        for _, block in exchange.ring_pass(torch.ones(2), prefetch=prefetch):
            block.mul_(10)

    with torch.no_grad(), pytest.raises(ExchangeError) as refused:
        write()
    return str(refused.value)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_writing_to_a_block_is_found_out(size: int, prefetch: int) -> None:
    for text in simulate(size, lambda adapter: writes_to_blocks(adapter, prefetch)):
        assert "modified in place" in text


def joins_after_a_fold(adapter: Adapter) -> float:
    """Steps of two kinds in turn: a contrastive one, and one without any exchange."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        exchange.ring_fold(lambda _, block: block.square().sum(), x).backward()
        exchange.join(x.square().sum()).backward()
        total = sum((b.sum() for _, b in exchange.ring_pass(x)), torch.zeros(()))
        exchange.join(total).backward()
    exchange.check_backward()
    assert x.grad is not None
    return float(x.grad.unique())


@pytest.mark.parametrize("size", SIZES)
def test_a_loss_without_an_exchange_may_be_joined_after_a_fold(world: World, size: int) -> None:
    assert world(joins_after_a_fold, size) == [2.0 * (2 * size + 2 + size)] * size


def joins_twice(adapter: Adapter) -> float:
    """Two losses over one exchange, its graph kept: the second runs it again, on all ranks."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    received = exchange.shift(x)
    received.sum().backward(retain_graph=True)
    used = received.sum() if exchange.rank else torch.zeros((), requires_grad=True) * 1
    exchange.join(used).backward()
    assert x.grad is not None
    return float(x.grad.unique())


@pytest.mark.parametrize("size", SIZES)
def test_a_kept_graph_is_still_tied_by_join(world: World, size: int) -> None:
    expected = [1.0 if (rank + 1) % size == 0 else 2.0 for rank in range(size)]
    assert world(joins_twice, size) == expected


def leaves_a_fold_out(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    with exchange:
        x = torch.ones(2, requires_grad=True)
        total = exchange.ring_fold(lambda _, block: block.sum(), x)
        (x.sum() if exchange.rank == 1 else total).backward()


def test_a_backward_of_a_fold_that_is_left_out_is_told_with_its_remedy(world: World) -> None:
    if world.name != "gloo":
        with pytest.raises(ExchangeMismatch, match=r"ring_fold\(axis='ring'\) backward"):
            world(leaves_a_fold_out, 3)
        return
    with pytest.raises(AssertionError, match=r"loss = exchange\.join\(loss\)"):
        world(leaves_a_fold_out, 3)


def other_like(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    exchange.shift(torch.ones(2), like=torch.ones(3))


def test_a_wrong_like_on_all_ranks_is_told_with_its_shapes(rank_pool: object) -> None:
    gloo = World("gloo", rank_pool)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"\(float32\[2\]\) for \(float32\[3\]\)"):
        gloo(other_like, 2)


@pytest.mark.parametrize("operation", ["foo", "all_reduce", "ring_fold"])
def test_what_cannot_be_explained_is_refused(operation: str) -> None:
    def program(adapter: Adapter) -> None:
        Exchange(Ring, adapter).explain(operation)  # type: ignore[arg-type]

    with pytest.raises(ArgumentError, match=f"expected one of shift, .* got '{operation}'"):
        simulate(1, program)


def nothing_to_broadcast(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    with pytest.raises(ArgumentError, match=r"broadcast.*expected a tree of tensors, got None"):
        exchange.broadcast(None, 0)


def test_each_rank_gives_a_tree_to_a_broadcast(world: World) -> None:
    world(nothing_to_broadcast, 2)


def gossips(adapter: Adapter) -> list[float]:
    exchange = Exchange(Graph.complete, adapter)
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, exchange.rank)
    nn.init.constant_(layer.bias, 1.0)
    exchange.gossip_(layer)
    one = torch.tensor(1.0)
    weights = torch.tensor([1.0, *[2.0] * (exchange.size - 1)])
    total = exchange.neighbor_allreduce(one, weights)
    return [layer.weight.item(), exchange.consensus_distance(layer), total.item()]


@pytest.mark.parametrize("size", SIZES)
def test_gossip_takes_a_module_and_weights_may_be_a_tensor(world: World, size: int) -> None:
    for weight, apart, total in world(gossips, size):
        assert weight == pytest.approx((size - 1) / 2)
        assert apart == pytest.approx(0.0, abs=1e-6)
        assert total == 1.0 + 2.0 * (size - 1)


def test_a_world_that_ends_inside_a_loop_ends_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        exchange.ring_scan(lambda *_: None, torch.ones(1), torch.ones(2))  # type: ignore[arg-type]

    with pytest.raises(ArgumentError, match="must return the next carry"):
        simulate(2, program)
    gc.collect()
    assert "Exception ignored" not in capsys.readouterr().err
