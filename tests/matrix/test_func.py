"""torch.func over an exchange, against the same transform of all ranks in one process.

The gradient is that of the sum over ranks: row k of a Jacobian by ``jacrev`` is what a change of
this rank's input does to the k-th outputs of all; column k by ``jacfwd`` is what a change of all
ranks' k-th inputs does here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from collectives import Adapter, Exchange, Ring
from tests.support.transformed import of, tensor
from tests.support.worlds import SIZES, World

EVERY_SIZE = pytest.mark.parametrize("size", SIZES)
SHOWN = pytest.mark.cell("torch.func", "raw")
F = Callable[[Tensor], Tensor]


def of_all(size: int, *shape: int) -> Tensor:
    return torch.stack([of(rank, *shape) for rank in range(size)])


def mixed(exchange: Exchange) -> F:
    """Nonlinear in what is sent and in what arrives, with another weight on each rank."""

    def f(x: Tensor) -> Tensor:
        left, right = exchange.exchange(to_left=x**2, to_right=x.sin())
        return (exchange.rank + 1) * left * x + right**3

    return f


def mixed_of_all(xs: Tensor) -> Tensor:
    """:func:`mixed` of all ranks, which are the first dim."""
    weights = torch.arange(1.0, len(xs) + 1, dtype=xs.dtype).view(-1, *[1] * (xs.ndim - 1))
    return weights * xs.sin().roll(1, 0) * xs + (xs**2).roll(-1, 0) ** 3


def gradient_of_all(xs: Tensor) -> Tensor:
    return tensor(grad(lambda xs: mixed_of_all(xs).sum())(xs))


def tangents_of_all(function: F, xs: Tensor) -> Tensor:
    """Return, for each rank, its Jacobian towards a common change of all ranks' inputs."""
    changes = torch.eye(xs.shape[1], dtype=xs.dtype)
    columns = [jvp(function, (xs,), (change.expand_as(xs),))[1] for change in changes]
    return torch.stack(columns, -1)


def check(found: list[Tensor], expected: Tensor) -> None:
    torch.testing.assert_close(torch.stack(found), expected)


def with_exchange(adapter: Adapter, program: Callable[[Exchange], Tensor]) -> Tensor:
    return program(Exchange(Ring, adapter))


def reverse_mode(exchange: Exchange) -> Tensor:
    f, x = mixed(exchange), of(exchange.rank, 3)
    by_grad = grad(lambda x: f(x).sum())(x)
    _, pull, *_ = vjp(f, x)
    torch.testing.assert_close(pull(torch.ones_like(x))[0], by_grad)
    return tensor(by_grad)


@SHOWN
@EVERY_SIZE
def test_grad_and_vjp_are_those_of_all_ranks_together(world: World, size: int) -> None:
    check(world(with_exchange, size, reverse_mode), gradient_of_all(of_all(size, 3)))


def rows_of_jacobian(exchange: Exchange) -> Tensor:
    f, x = mixed(exchange), of(exchange.rank, 3)
    at_once = tensor(jacrev(f)(x))
    torch.testing.assert_close(jacrev(f, chunk_size=2)(x), at_once)
    return at_once


@SHOWN
@EVERY_SIZE
def test_jacrev_is_that_of_all_ranks_together(world: World, size: int) -> None:
    xs = of_all(size, 3)
    rows = [grad(lambda xs, k=k: mixed_of_all(xs)[:, k].sum())(xs) for k in range(3)]
    check(world(with_exchange, size, rows_of_jacobian), torch.stack(rows, 1))


def forward_mode(exchange: Exchange) -> Tensor:
    f, x = mixed(exchange), of(exchange.rank, 3)
    columns = tensor(jacfwd(f)(x))
    _, tangent, *_ = jvp(f, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(columns.sum(-1), tangent)
    torch.testing.assert_close(jacfwd(f, randomness="same")(x), columns)
    return columns


@SHOWN
@EVERY_SIZE
def test_jvp_and_jacfwd_are_those_of_all_ranks_together(ranks: World, size: int) -> None:
    # Forward-mode levels are one per process.
    expected = tangents_of_all(mixed_of_all, of_all(size, 3))
    check(ranks(with_exchange, size, forward_mode), expected)


def second_derivatives(exchange: Exchange) -> Tensor:
    f = mixed(exchange)
    return tensor(hessian(lambda x: f(x).sum())(of(exchange.rank, 3)))


@SHOWN
@EVERY_SIZE
def test_hessian_is_that_of_all_ranks_together(ranks: World, size: int) -> None:
    expected = tangents_of_all(gradient_of_all, of_all(size, 3))
    check(ranks(with_exchange, size, second_derivatives), expected)


def batched(exchange: Exchange) -> Tensor:
    f, rows = mixed(exchange), of(exchange.rank, 4, 3)
    result = vmap(f)(rows)
    torch.testing.assert_close(vmap(f, in_dims=1, out_dims=-1)(rows.T).T, result)
    twice = vmap(vmap(f, in_dims=1), out_dims=2)(rows.view(2, 2, 3).transpose(1, 2))
    torch.testing.assert_close(twice.permute(2, 0, 1).reshape(4, 3), result)
    before = exchange.stats()["exchanges"]
    vmap(f, chunk_size=2)(rows)
    assert exchange.stats()["exchanges"] - before == 2  # one for each chunk, not for each row
    return tensor(result)


@SHOWN
@EVERY_SIZE
def test_vmap_exchanges_the_whole_batch_at_once(world: World, size: int) -> None:
    check(world(with_exchange, size, batched), mixed_of_all(of_all(size, 4, 3)))


def of_each_row(exchange: Exchange) -> Tensor:
    f, rows = mixed(exchange), of(exchange.rank, 4, 3)
    inside = grad(lambda rows: vmap(f)(rows).sum())(rows)
    outside = vmap(grad(lambda x: f(x).sum()))(rows)
    torch.testing.assert_close(inside, outside)
    return tensor(outside)


@SHOWN
@EVERY_SIZE
def test_gradients_of_each_row_are_those_of_all_ranks_together(world: World, size: int) -> None:
    check(world(with_exchange, size, of_each_row), gradient_of_all(of_all(size, 4, 3)))


def shared_and_own(exchange: Exchange) -> Tensor:
    """One tensor of the tree has a batch, one is shared by all rows, one is a number."""
    shared, number = of(10 + exchange.rank, 3), torch.tensor(exchange.rank)

    def f(x: Tensor) -> Tensor:
        arrived = exchange.shift({"x": x, "shared": shared, "number": number})
        return arrived["x"] * arrived["shared"] + arrived["number"]

    return tensor(vmap(f)(of(exchange.rank, 4, 3)))


@SHOWN
@EVERY_SIZE
def test_what_has_no_batch_travels_with_what_has(world: World, size: int) -> None:
    expected = [of(r, 4, 3) * of(10 + r, 3) + r for r in range(size)]
    check(world(with_exchange, size, shared_and_own), torch.stack(expected).roll(1, 0))


def unused_on_some_ranks(exchange: Exchange) -> Tensor:
    """Gradients of what rank 0 does not use are plain zeros there, and batches elsewhere."""

    def loss(x: Tensor) -> Tensor:
        left, right = exchange.exchange(to_left=x**2, to_right=x**3)
        return (left * x).sum() if exchange.rank == 0 else (right * x).sum()

    return tensor(vmap(grad(loss))(of(exchange.rank, 4, 3)))


def unused_of_all(xs: Tensor) -> Tensor:
    left, right = (xs**3).roll(1, 0), (xs**2).roll(-1, 0)
    return (left[0] * xs[0]).sum() + (right[1:] * xs[1:]).sum()


@SHOWN
@EVERY_SIZE
def test_ranks_whose_losses_use_different_sides_agree_on_the_batch(world: World, size: int) -> None:
    expected = grad(unused_of_all)(of_all(size, 4, 3))
    check(world(with_exchange, size, unused_on_some_ranks), expected)


def without_gradient(exchange: Exchange) -> Tensor:
    def loss(x: Tensor, counts: Tensor) -> Tensor:
        with torch.no_grad():
            frozen = exchange.shift(x)  # a metric
        arrived = exchange.shift(counts)  # no gradient could flow
        started = exchange.start_shift(counts * 2)
        return (x * frozen * (arrived + started.wait())).sum()

    x, counts = of(exchange.rank, 3), torch.arange(3) + exchange.rank
    single = grad(loss)(x, counts)
    rows = vmap(grad(loss))(x.expand(2, 3), counts.expand(2, 3))
    torch.testing.assert_close(rows, single.expand(2, 3))
    return tensor(single)


@SHOWN
@EVERY_SIZE
def test_what_needs_no_gradient_is_exchanged_inside_a_transform_too(
    world: World, size: int
) -> None:
    expected = [of(r, 3) * 3 * (torch.arange(3) + r) for r in range(size)]
    check(world(with_exchange, size, without_gradient), torch.stack(expected).roll(1, 0))
