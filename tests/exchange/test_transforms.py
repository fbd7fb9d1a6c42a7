"""Forward mode and torch.func: the same exchange, outside of backward()."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from collectives import Adapter, Exchange, Ring
from tests.support.worlds import SIZES, World


def random(exchange: Exchange, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(exchange.rank)
    return torch.randn(shape, dtype=dtype, generator=generator)


def tangents(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    x, t = random(exchange, 2), random(exchange, 2) * 3
    expected_x, expected_t = exchange.shift(x), exchange.shift(t)
    y, dy = torch.func.jvp(lambda x: exchange.shift(x, fill=9) * 2, (x,), (t,))[:2]
    assert torch.equal(y, 2 * expected_x)
    return torch.equal(dy, 2 * expected_t)


@pytest.mark.parametrize("size", SIZES)
def test_forward_mode_through_torch_func(rank_pool: object, size: int) -> None:
    # Forward-mode levels are one per process: ranks that are threads would share them.
    assert all(World("gloo", rank_pool)(tangents, size))  # type: ignore[arg-type]


def dual_numbers(adapter: Adapter) -> bool:
    exchange = Exchange(Ring(exchange_size(adapter), periodic=False), adapter)
    x, t = random(exchange, 2), random(exchange, 2) * 3
    with torch.no_grad():
        expected = exchange.exchange(to_left=t, to_right=2 * t)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        received = exchange.exchange(to_left=(dual, torch.arange(3)), to_right=2 * dual)
        pending = exchange.start_exchange(to_left=dual, to_right=2 * dual)
        moved = [
            forward_ad.unpack_dual(side).tangent
            for side in (received.from_left, received.from_right[0], *pending.wait())
        ]
    return all(torch.equal(a, b) for a, b in zip(moved, [*expected, *expected], strict=True))


def exchange_size(adapter: Adapter) -> int:
    return adapter.context().size


@pytest.mark.parametrize("size", SIZES)
def test_forward_mode_with_dual_numbers(rank_pool: object, size: int) -> None:
    assert all(World("gloo", rank_pool)(dual_numbers, size))  # type: ignore[arg-type]


def transforms(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    x = random(exchange, 3)

    def loss(x: Tensor) -> Tensor:
        received = exchange.exchange(to_left=x, to_right=x)
        return ((rank + 1) * received.from_left).sum() + received.from_right.pow(2).sum()

    expected = (rank + 1) % size + 1 + 2 * x
    gradient = torch.func.grad(loss)(x)
    value, pullback = torch.func.vjp(loss, x)[:2]
    return torch.allclose(gradient, expected) and torch.allclose(
        pullback(torch.ones_like(value))[0], expected
    )


@pytest.mark.parametrize("size", SIZES)
def test_torch_func_grad_and_vjp(world: World, size: int) -> None:
    assert all(world(transforms, size))


def joined_inside(adapter: Adapter) -> bool:
    """A chain that was left open outside is no part of what a transform differentiates."""
    exchange = Exchange(Ring, adapter)
    x = random(exchange, 2)
    exchange.shift(x.clone().requires_grad_())

    def loss(x: Tensor) -> Tensor:
        return exchange.join((exchange.shift(x) ** 2).sum())

    return torch.allclose(torch.func.grad(loss)(x), 2 * x)


@pytest.mark.parametrize("size", SIZES)
def test_join_inside_a_transform_leaves_the_loss_alone(world: World, size: int) -> None:
    assert all(world(joined_inside, size))


def carried_out(adapter: Adapter) -> list[list[float]]:
    """A tensor that left a transform which has ended: torch's wrapper around it has no memory."""
    exchange = Exchange(Ring, adapter)
    carried: list[Tensor] = []

    def loss(x: Tensor) -> Tensor:
        carried.append(x * exchange.rank)
        return x.sum()

    torch.func.grad(loss)(torch.ones(2))
    with torch.no_grad():
        without = exchange.shift(carried[0]).tolist()
    return [without, exchange.shift(carried[0]).tolist()]


@pytest.mark.parametrize("size", SIZES)
def test_what_was_carried_out_of_a_transform_is_exchanged(world: World, size: int) -> None:
    assert world(carried_out, size) == [[[float((r - 1) % size)] * 2] * 2 for r in range(size)]
