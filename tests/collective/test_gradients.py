"""Gradients of collective operations: the adjoint, and those of one process for all losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.testing import check_adjoint, simulate
from collectives.topology import Topology
from tests.support.single import COLUMNS, LINES, REDUCTIONS, all_to_all, line, split, tensor
from tests.support.worlds import SIZES, World

EACH_LINE = pytest.mark.parametrize(("topology", "axis"), LINES, ids=str)
EACH_WIDTH = pytest.mark.parametrize("columns", COLUMNS)
Distributed = Callable[[Exchange, Tensor, str | None], Tensor]
Single = Callable[[Sequence[Tensor]], list[Tensor]]


def reduced(op: str) -> Single:
    return lambda xs: [REDUCTIONS[op](xs)] * len(xs)


def scattered(op: str) -> Single:
    return lambda xs: list(split(REDUCTIONS[op](xs), len(xs)))


OPERATIONS: dict[str, tuple[Distributed, Single]] = {
    "all_gather": (
        lambda e, x, axis: e.all_gather(x, axis=axis),
        lambda xs: [torch.cat(list(xs))] * len(xs),
    ),
    "all_to_all": (lambda e, x, axis: e.all_to_all(x, 1, axis=axis), lambda xs: all_to_all(xs, 1)),
    "broadcast": (
        lambda e, x, axis: e.broadcast(x, 0, axis=axis),
        lambda xs: [xs[0].clone() for _ in xs],
    ),
    "sum": (lambda e, x, axis: e.all_reduce(x, axis=axis), reduced("sum")),
    "mean": (lambda e, x, axis: e.all_reduce(x, "mean", axis=axis), reduced("mean")),
    "max": (lambda e, x, axis: e.all_reduce(x, "max", axis=axis), reduced("max")),
    "scattered sum": (lambda e, x, axis: e.reduce_scatter(x, axis=axis), scattered("sum")),
    "scattered mean": (
        lambda e, x, axis: e.reduce_scatter(x, op="mean", axis=axis),
        scattered("mean"),
    ),
    "scattered max": (
        lambda e, x, axis: e.reduce_scatter(x, op="max", axis=axis),
        scattered("max"),
    ),
}


def largest_error(adapter: Adapter, topology: Topology, axis: str | None, columns: int) -> float:
    exchange = Exchange(topology, adapter)
    x = tensor(exchange.rank, 2, columns)
    mine = tensor(exchange.rank, exchange.rank % 3, columns)  # uneven; some have none
    operations: list[Callable[[Tensor, Tensor], object]] = [
        lambda x, y: exchange.all_gather({"y": [y]}, axis=axis),
        lambda x, y: exchange.all_gather((x.t(), x.t()), -1, axis=axis, shapes="once"),
        lambda x, y: exchange.reduce_scatter([x, x.double()], 1, axis=axis),
        lambda x, y: exchange.reduce_scatter(x, 0, "mean", axis=axis),
        lambda x, y: exchange.all_reduce((x, x[0]), axis=axis),
        lambda x, y: exchange.all_reduce(x, "mean", axis=axis),
        lambda x, y: exchange.all_to_all((y, x), axis=axis),
        lambda x, y: exchange.broadcast((x, x[0]), 0, axis=axis),
    ]
    return max(check_adjoint(exchange, operation, x, mine) for operation in operations)


@EACH_WIDTH
@EACH_LINE
def test_every_backward_is_the_adjoint(
    world: World, topology: Topology, axis: str | None, columns: int
) -> None:
    assert max(world(largest_error, topology.size, topology, axis, columns)) <= 1e-12


def complex_error(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)
    x = torch.complex(tensor(exchange.rank, 3, 2), tensor(exchange.rank + 9, 3, 2))
    return check_adjoint(exchange, lambda x: exchange.all_reduce(exchange.all_gather(x.conj())), x)


@pytest.mark.parametrize("size", SIZES)
def test_complex_gradients_are_the_adjoint(world: World, size: int) -> None:
    assert max(world(complex_error, size)) <= 1e-12


def loss(result: Tensor, rank: int) -> Tensor:
    """A loss of its own for each rank, that weighs every element."""
    weights = torch.linspace(1, 2, result.numel(), dtype=result.dtype).view(result.shape)
    return (rank + 1) * (weights * result.sin()).sum()


def inputs(rank: int, columns: int) -> Tensor:
    """Values of which some are largest on one rank, and some on several."""
    x = tensor(rank, 2, columns)
    x[:, ::3] = 1.0 + (rank % 2)
    return x


def on_ranks(
    adapter: Adapter, name: str, topology: Topology, axis: str | None, columns: int
) -> Tensor:
    exchange = Exchange(topology, adapter)
    x = inputs(exchange.rank, columns).requires_grad_()
    operation, _ = OPERATIONS[name]
    result = operation(exchange, x * 1, axis)
    exchange.join(loss(result, exchange.rank)).backward()
    assert x.grad is not None
    return x.grad


def on_one(name: str, topology: Topology, axis: str | None, columns: int) -> list[Tensor]:
    """Return the gradients of the sum of all ranks' losses."""
    xs = [inputs(rank, columns).requires_grad_() for rank in range(topology.size)]
    _, operation = OPERATIONS[name]
    total = torch.zeros((), dtype=torch.float64)
    for rank in range(topology.size):
        ranks = line(topology, rank, axis)
        results = operation([xs[r] * 1 for r in ranks])
        total = total + loss(results[ranks.index(rank)], rank)
    return list(torch.autograd.grad(total, xs, materialize_grads=True))


@EACH_WIDTH
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_is_that_of_the_sum_over_ranks_of_the_losses(
    world: World, size: int, name: str, columns: int
) -> None:
    found = world(on_ranks, size, name, Ring(size), None, columns)
    for grad, expected in zip(found, on_one(name, Ring(size), None, columns), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPERATIONS)
@EACH_LINE
def test_the_gradient_on_a_line_is_that_of_its_ranks(
    name: str, topology: Topology, axis: str | None
) -> None:
    found = simulate(topology.size, on_ranks, name, topology, axis, 3)
    for grad, expected in zip(found, on_one(name, topology, axis, 3), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)


def reduced_gradient(adapter: Adapter, columns: int, op: str) -> bytes:
    exchange = Exchange(Ring, adapter)
    x = tensor(exchange.rank, columns, dtype=torch.float32).requires_grad_()
    total = exchange.all_reduce(x, op)  # type: ignore[arg-type]
    own = tensor(exchange.rank + 20, columns, dtype=torch.float32)
    exchange.join((total * own).sum()).backward()
    assert x.grad is not None
    return x.grad.numpy().tobytes()


@EACH_WIDTH
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("size", SIZES)
def test_gradients_of_a_sum_are_the_same_bits_on_all_ranks(
    world: World, size: int, op: str, columns: int
) -> None:
    assert len(set(world(reduced_gradient, size, columns, op))) == 1


def penalty(adapter: Adapter, columns: int) -> Tensor:
    """The gradient of the norm of a gradient, through every operation."""
    exchange = Exchange(Ring, adapter)
    x = tensor(exchange.rank, 2, columns).requires_grad_()
    y = exchange.all_reduce(exchange.all_gather(x.square()).sin())
    y = exchange.broadcast(exchange.all_to_all(y), 0)
    value = exchange.join(exchange.reduce_scatter(y, 1).cos().sum())
    (grad,) = torch.autograd.grad(value, x, create_graph=True)
    exchange.join(grad.square().sum()).backward()
    assert x.grad is not None
    return x.grad


def penalty_on_one(size: int, columns: int) -> list[Tensor]:
    xs = [tensor(r, 2, columns).requires_grad_() for r in range(size)]
    total = size * torch.cat([x.square() for x in xs]).sin()
    spread = all_to_all([total] * size)[0]
    value = (size * spread).cos().sum()
    grads = torch.autograd.grad(value, xs, create_graph=True)
    torch.stack([g.square().sum() for g in grads]).sum().backward()
    return [x.grad for x in xs if x.grad is not None]


@EACH_WIDTH
@pytest.mark.parametrize("size", SIZES)
def test_gradients_can_be_differentiated_again(world: World, size: int, columns: int) -> None:
    found = world(penalty, size, columns)
    for grad, expected in zip(found, penalty_on_one(size, columns), strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-10)


def tangents(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    size = exchange.size
    with forward_ad.dual_level():
        x = forward_ad.make_dual(tensor(exchange.rank, 4), tensor(exchange.rank + 5, 4))
        tangent = forward_ad.unpack_dual(exchange.all_reduce(exchange.all_gather(x))).tangent
    return torch.equal(tangent, size * torch.cat([tensor(r + 5, 4) for r in range(size)]))


def test_forward_mode_sends_the_tangents() -> None:
    assert simulate(1, tangents) == [True]


@pytest.mark.ranks(2)
def test_forward_mode_sends_the_tangents_between_ranks() -> None:
    assert tangents(RawDDPAdapter())
