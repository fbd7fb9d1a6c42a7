"""Backward in programs: under DDP, with losses unlike each other, transformed, without memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import DeadExchange
from collectives.testing import simulate
from tests.support.single import COLUMNS, tensor
from tests.support.worlds import SIZES, World

EACH_WIDTH = pytest.mark.parametrize("columns", COLUMNS)


def contrast(mine: Tensor, every: Tensor, first: int) -> Tensor:
    """The mean over my rows of a loss against all rows."""
    labels = torch.arange(first, first + len(mine))
    return torch.nn.functional.cross_entropy(mine @ every.t(), labels)


def batch(rank: int) -> Tensor:
    return tensor(rank, 4, 6)


def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(6, 3, dtype=torch.float64)


MODELS: dict[str, Callable[[Exchange, Tensor], Tensor]] = {
    "all_gather": lambda e, y: e.all_gather(y),
    "all_to_all": lambda e, y: e.all_gather(e.all_to_all(e.all_to_all(y))),
    "all_reduce": lambda e, y: e.all_reduce(
        torch.cat([y * float(r == e.rank) for r in range(e.size)])
    ),
    "broadcast": lambda e, y: torch.cat([e.broadcast(y, r) for r in range(e.size)]),
    "reduce_scatter": lambda e, y: e.all_gather(
        e.reduce_scatter(torch.cat([y * float(r == e.rank) for r in range(e.size)]))
    ),
}


@pytest.mark.ranks(2, 3)
def test_ddp_with_a_mean_local_loss_has_the_gradient_of_one_process(
    rank: int, world_size: int
) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    alone = layer()
    whole = alone(torch.cat([batch(r) for r in range(world_size)]))
    contrast(whole, whole, 0).backward()
    for name, operation in MODELS.items():
        model = DistributedDataParallel(layer())
        mine = model(batch(rank))
        value = contrast(mine, operation(exchange, mine), 4 * rank)
        exchange.join(value).backward()
        for got, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert got.grad is not None
            assert expected.grad is not None
            assert torch.allclose(got.grad, expected.grad, rtol=1e-12, atol=1e-12), name


def unlike(adapter: Adapter, columns: int) -> list[float]:
    """Losses that need another part of the exchanges on each rank; one needs nothing."""
    exchange = Exchange(Ring, adapter)
    x = torch.full((2, columns), 1.0 + exchange.rank, requires_grad=exchange.rank != 1)
    gathered = exchange.all_gather(x)
    total = exchange.all_reduce(x)
    spread = exchange.broadcast(x, 0)
    value = (gathered.sum(), torch.zeros(()), spread.mean())[exchange.rank]
    del total
    exchange.join(value).backward()
    exchange.check_backward()
    return [] if x.grad is None else [x.grad.sum().item() / x.numel()]


@EACH_WIDTH
def test_every_rank_takes_part_in_backward_whatever_its_loss_needs(
    world: World, columns: int
) -> None:
    (first, second, third) = world(unlike, 3, columns)
    assert first == pytest.approx([1 + 1 / (2 * columns)])
    assert second == []
    assert third == [1.0]


def transformed(adapter: Adapter) -> bool:
    """torch.func differentiates what one rank's loss says of all ranks' tensors."""
    exchange = Exchange(Ring, adapter)

    def value(x: Tensor) -> Tensor:
        y = exchange.all_to_all(exchange.all_reduce(exchange.all_gather(x)))
        return (exchange.broadcast(y, 0) * exchange.reduce_scatter(y)[0]).sum()

    x = tensor(exchange.rank, 4)
    wanted = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(exchange.join(value(wanted)), wanted)
    return torch.allclose(torch.func.grad(value)(x), expected, rtol=1e-12)


@pytest.mark.ranks(1, 2, 3)
def test_transforms_of_torch_func_differentiate_too() -> None:
    assert transformed(RawDDPAdapter())


def computed_again(adapter: Adapter, columns: int, *, again: bool) -> Tensor:
    """Return a gradient through a block that backward may compute a second time."""
    exchange = Exchange(Ring, adapter)

    def block(x: Tensor) -> Tensor:
        y = exchange.all_gather(x.sin()).cos()
        return exchange.broadcast(exchange.all_reduce(y, "mean"), 0) * exchange.all_to_all(y)

    x = tensor(exchange.rank, 2, columns).requires_grad_()
    result = checkpoint(block, x, use_reentrant=False) if again else block(x)
    exchange.join((result * (exchange.rank + 1)).sum()).backward()
    exchange.check_backward()
    assert x.grad is not None
    return x.grad


@EACH_WIDTH
@pytest.mark.parametrize("size", SIZES)
def test_a_checkpointed_block_is_computed_again_by_all_ranks(
    world: World, size: int, columns: int
) -> None:
    once = world(lambda adapter: computed_again(adapter, columns, again=False), size)
    twice = world(lambda adapter: computed_again(adapter, columns, again=True), size)
    assert all(map(torch.equal, once, twice))


def saved_bytes(adapter: Adapter, columns: int) -> int:
    """Return what autograd keeps for backward, in operations that are linear."""
    exchange = Exchange(Ring, adapter)
    kept = []

    def note(saved: Tensor) -> Tensor:
        kept.append(saved.nbytes)
        return saved

    x = torch.ones(2, columns, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        y = exchange.all_reduce(exchange.all_gather(x), "mean")
        y = exchange.broadcast(exchange.reduce_scatter(exchange.all_to_all(y)), 0)
    assert kept, "each exchange keeps its token at least"
    assert y.requires_grad
    return sum(kept)


@EACH_WIDTH
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_kept_for_backward(size: int, columns: int) -> None:
    # the divisor of the mean is a number: 8 bytes at most
    assert max(simulate(size, saved_bytes, columns)) <= 8


def metric(adapter: Adapter, columns: int, *, needed: bool) -> None:
    """Sum what nothing depends on, beside a loss that is not joined."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    loss = exchange.shift(x).sum()
    exchange.all_reduce(torch.ones(2, columns, requires_grad=needed))
    loss.backward()
    exchange.check_backward()


@EACH_WIDTH
def test_a_metric_under_grad_raises_no_alarm(world: World, columns: int) -> None:
    world(lambda adapter: metric(adapter, columns, needed=False), 3)


@EACH_WIDTH
def test_a_sum_whose_backward_is_left_out_is_found(columns: int) -> None:
    with pytest.raises(DeadExchange, match="all_reduce"):
        simulate(3, lambda adapter: metric(adapter, columns, needed=True))
