"""Backward and forward mode: halo_reduce is the adjoint, to every order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from collectives import Adapter, Exchange, Mesh, Ring
from collectives.testing import check_adjoint, simulate
from tests.support.fields import FIELDS, Field
from tests.support.worlds import World

MODES = ("zeros", "replicate", "reflect")
DIMS: dict[int, str | int | None] = {0: "y", 1: "x"}


def adjoints(adapter: Adapter, field: Field) -> float:
    exchange = Exchange(field.mesh, adapter)
    x = field.shard(field.whole(), exchange.rank)
    worst = 0.0
    for mode in MODES:
        for width in ((1, 1), (2, 0)):
            y = exchange.halo_exchange(x, field.dims, width, mode)  # type: ignore[arg-type]
            given = torch.randn(y.shape, dtype=y.dtype)

            def forward(x: Tensor, width: tuple[int, int] = width, mode: str = mode) -> Tensor:
                return exchange.halo_exchange(x, field.dims, width, mode)  # type: ignore[arg-type]

            def reduce(y: Tensor, width: tuple[int, int] = width, mode: str = mode) -> Tensor:
                return exchange.halo_reduce(y, field.dims, width, mode)  # type: ignore[arg-type]

            leaf = x.clone().requires_grad_()
            loss = exchange.join((forward(leaf) * given).sum())
            (grad,) = torch.autograd.grad(loss, leaf)
            with torch.no_grad():
                assert torch.allclose(reduce(given), grad, rtol=0, atol=1e-12)
            worst = max(worst, check_adjoint(exchange, forward, x))
            worst = max(worst, check_adjoint(exchange, reduce, given))
    exchange.mark_step(1)
    return worst


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: repr(field.mesh))
def test_the_backward_is_halo_reduce_and_its_adjoint(world: World, field: Field) -> None:
    assert max(world(adjoints, field.mesh.size, field)) <= 1e-12


def grid(adapter: Adapter) -> Exchange:
    return Exchange(
        lambda size: Mesh.balanced(size, 2, axes=("y", "x"), periodic=(True, False)), adapter
    )


def shard(exchange: Exchange) -> Tensor:
    generator = torch.Generator().manual_seed(exchange.rank)
    return torch.randn(3, 4, dtype=torch.float64, generator=generator)


def cubes(exchange: Exchange, x: Tensor) -> Tensor:
    return (exchange.halo_exchange(x, DIMS, (1, 2), "reflect") ** 3).sum()


def second_order(adapter: Adapter) -> float:
    exchange = grid(adapter)
    x, v = shard(exchange).requires_grad_(), shard(exchange).flip(0)
    (grad,) = torch.autograd.grad(exchange.join(cubes(exchange, x)), x, create_graph=True)
    (product,) = torch.autograd.grad(exchange.join((grad * v).sum()), x)
    y = exchange.halo_exchange(x, DIMS, (1, 2), "reflect").detach()
    with torch.no_grad():
        along = exchange.halo_exchange(v, DIMS, (1, 2), "reflect")
        expected = exchange.halo_reduce(6 * y * along, DIMS, (1, 2), "reflect")
    return float((product - expected).abs().max())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_double_backward_is_one_more_exchange(size: int) -> None:
    assert max(simulate(size, second_order)) < 1e-11


def ways_to_the_same_gradient(adapter: Adapter) -> bool:
    exchange = grid(adapter)
    x = shard(exchange).requires_grad_()
    (expected,) = torch.autograd.grad(exchange.join(cubes(exchange, x)), x)
    padded = exchange.start_halo_exchange(x, DIMS, (1, 2), "reflect").wait()
    (started,) = torch.autograd.grad(exchange.join((padded**3).sum()), x)
    loss = checkpoint(lambda x: cubes(exchange, x), x, use_reentrant=False)
    assert isinstance(loss, Tensor)
    (recomputed,) = torch.autograd.grad(exchange.join(loss), x)
    transformed = torch.func.grad(lambda x: cubes(exchange, x))(x.detach())
    others = (started, recomputed, transformed)
    return all(torch.allclose(g, expected, rtol=0, atol=1e-12) for g in others)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_started_checkpointed_and_transformed_halos_have_the_same_gradient(
    world: World, size: int
) -> None:
    assert all(world(ways_to_the_same_gradient, size))


def tangents(adapter: Adapter) -> bool:
    exchange = grid(adapter)
    x, t = shard(exchange), shard(exchange).flip(0)
    expected = exchange.halo_exchange(t, DIMS, (1, 2), "reflect")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        y = exchange.halo_exchange(dual, DIMS, (1, 2), "reflect")
        back = exchange.halo_reduce(y, DIMS, (1, 2), "reflect")
        tangent, of_sum = forward_ad.unpack_dual(y).tangent, forward_ad.unpack_dual(back).tangent
    summed = exchange.halo_reduce(expected, DIMS, (1, 2), "reflect")
    return torch.equal(tangent, expected) and torch.allclose(of_sum, summed)


def first_of_all(adapter: Adapter) -> bool:
    exchange = grid(adapter)
    x = shard(exchange)
    transformed = torch.func.grad(lambda x: cubes(exchange, x))(x)
    leaf = x.requires_grad_()
    (expected,) = torch.autograd.grad(exchange.join(cubes(exchange, leaf)), leaf)
    return torch.allclose(transformed, expected, rtol=0, atol=1e-12)


def test_sizes_are_asked_for_inside_a_transform_as_outside(world: World) -> None:
    assert all(world(first_of_all, 2))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_forward_mode_takes_the_tangents_along(rank_pool: object, size: int) -> None:
    # Forward-mode levels are one per process: ranks that are threads would share them.
    assert all(World("gloo", rank_pool)(tangents, size))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [(1, 0), (0, 1), (1, 1)])
def test_no_rank_waits_for_one_whose_halo_comes_from_a_rule(
    mode: str, width: tuple[int, int]
) -> None:
    """A rank at an open end gives rows and gets none: its backward must take part without join."""

    def program(adapter: Adapter) -> float:
        exchange = Exchange(lambda size: Ring(size, periodic=False), adapter)
        x = torch.ones(2, requires_grad=True)
        exchange.halo_exchange(x, {0: "ring"}, width, mode).sum().backward()  # type: ignore[arg-type]
        exchange.check_backward()
        assert x.grad is not None
        return float(x.grad.sum())

    size = 3
    made = sum(width) if mode == "replicate" or mode == "reflect" else 0
    assert sum(simulate(size, program)) == 2 * size + (size - 1) * sum(width) + made


def test_a_rank_whose_loss_needs_no_halo_takes_part_by_join(world: World) -> None:
    assert world(_unused, 3) == [5.0, 2.0, 5.0]


def _unused(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2, requires_grad=True)
    padded = exchange.halo_exchange(x, {0: "ring"})
    loss = x.sum() if exchange.rank == 1 else x.sum() + padded.sum()
    exchange.join(loss).backward()
    assert x.grad is not None
    gradient = float(x.grad.sum())
    # Of each neighbour that uses its halo comes one.
    assert exchange.rank != 1 or gradient == 4.0
    return gradient - 2.0 if exchange.rank == 1 else gradient


def test_a_halo_that_no_gradient_needs_raises_no_alarm_when_another_ran_backward() -> None:
    def program(adapter: Adapter) -> None:
        exchange = grid(adapter)
        with torch.enable_grad():
            padded = exchange.halo_exchange(shard(exchange), DIMS)  # a metric: of no loss
            exchange.halo_reduce(padded.detach(), DIMS)
            cubes(exchange, shard(exchange).requires_grad_()).backward()
        exchange.check_backward()

    simulate(4, program)
