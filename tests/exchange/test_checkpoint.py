"""Activation checkpointing: the block is computed again, and its exchanges with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from collectives import Adapter, Exchange, Pending, Ring
from tests.support.worlds import SIZES, World


def leaf(rank: int) -> Tensor:
    return torch.tensor([1.0 + rank, 2.0], dtype=torch.float64, requires_grad=True)


def gradient(x: Tensor) -> list[float]:
    return [0.0, 0.0] if x.grad is None else x.grad.tolist()


def checkpointed(adapter: Adapter, reentrant: bool) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)

    def block(y: Tensor) -> Tensor:
        received = exchange.exchange(to_left=y.sin(), to_right=y.exp())
        return (received.from_left * received.from_right).tanh()

    plain = exchange.join(block(block(x)).sum())
    (expected,) = torch.autograd.grad(plain, x)
    y = checkpoint(block, x, use_reentrant=reentrant)
    y = checkpoint(block, y, use_reentrant=reentrant)
    exchange.join(y.sum()).backward()
    exchange.mark_step()
    assert x.grad is not None
    return (x.grad - expected).tolist()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_activation_checkpointing_repeats_the_exchange(
    world: World, size: int, reentrant: bool
) -> None:
    assert world(checkpointed, size, reentrant) == [[0.0, 0.0]] * size


def checkpointed_pending(adapter: Adapter) -> list[float]:
    """The recomputation stops as soon as it has what it needs: its Pending is not an error."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)

    def block(y: Tensor) -> Tensor:
        return exchange.start_shift(y.sin()).wait()

    y = checkpoint(block, x, use_reentrant=False)
    exchange.join(y.sum()).backward()
    exchange.mark_step()
    return (x.grad - x.cos()).tolist() if x.grad is not None else []


@pytest.mark.parametrize("size", SIZES)
def test_a_started_exchange_may_be_checkpointed(world: World, size: int) -> None:
    assert world(checkpointed_pending, size) == [[0.0, 0.0]] * size


def checkpointed_skip(adapter: Adapter) -> list[float]:
    """As in ring attention: a rank that skips the block computes it again all the same."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)

    def block(y: Tensor) -> Tensor:
        return exchange.shift(exchange.shift(y * y) * y) * y

    y = checkpoint(block, x, use_reentrant=False)
    loss = x.sum() if exchange.rank == 0 else y.sum()
    exchange.join(loss).backward()
    return gradient(x)


def skip_reference(size: int) -> list[list[float]]:
    xs = [leaf(rank) for rank in range(size)]
    inner = [xs[(r - 1) % size] ** 2 * xs[r] for r in range(size)]
    outer = [inner[(r - 1) % size] * xs[r] for r in range(size)]
    (xs[0].sum() + sum(y.sum() for y in outer[1:])).backward()
    return [gradient(x) for x in xs]


@pytest.mark.parametrize("size", SIZES)
def test_a_checkpoint_is_computed_again_on_ranks_that_skip_it(world: World, size: int) -> None:
    assert world(checkpointed_skip, size) == skip_reference(size)


def waited_for_outside(adapter: Adapter) -> list[float]:
    """The recomputation starts the exchange once more and drops it: its messages are finished."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)

    def block(y: Tensor) -> tuple[Pending[Tensor], Tensor]:
        return exchange.start_shift(y.sin()), y.exp()

    for _ in range(2):
        pending, z = checkpoint(block, x, use_reentrant=False)
        exchange.join((pending.wait() + z).sum()).backward()
        del pending, z
        exchange.mark_step()
    assert x.grad is not None
    return (x.grad - 2 * (x.cos() + x.exp())).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_what_a_checkpoint_starts_may_be_waited_for_outside_of_it(world: World, size: int) -> None:
    assert world(waited_for_outside, size) == [[0.0, 0.0]] * size
