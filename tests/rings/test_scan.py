"""ring_scan: a carry through all blocks, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from collectives import Adapter, Exchange, Ring
from collectives.errors import ArgumentError, CapturedTensorError
from collectives.testing import check_adjoint
from tests.support.worlds import SIZES, World

from .cases import CASES, Case, block, sources

Carry = tuple[Tensor, Tensor]


def step(source: int, carry: Carry, block: Tensor, factor: Tensor, scale: Tensor) -> Carry:
    total, count = carry
    return torch.tanh(total * factor + (source + 1) * block) * scale, count + 1


def begin(rank: int) -> Tensor:
    return block(rank + 20)


def loss_of(carry: Carry, rank: int) -> Tensor:
    return (rank + 1) * carry[0].square().sum()


def scanned(adapter: Adapter, case: Case, skips: bool) -> list[Tensor]:
    topology, axis = case
    exchange = Exchange(topology, adapter)
    rank = exchange.rank
    mine, first, factor = (
        block(rank).requires_grad_(),
        begin(rank).requires_grad_(),
        block(rank + 40).requires_grad_(),
    )
    scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def fn(source: int, carry: Carry, block: Tensor, factor: Tensor) -> Carry:
        return carry if skips and source > rank else step(source, carry, block, factor, scale)

    carry = exchange.ring_scan(fn, (first, torch.tensor(0)), mine, factor, axis=axis, params=scale)
    loss_of(carry, rank).backward()
    exchange.check_backward()
    grads = [x.grad for x in (mine, first, factor, scale) if x.grad is not None]
    return [carry[0].detach(), carry[1], *grads]


def in_one_process(case: Case, *, skips: bool) -> list[list[Tensor]]:
    size = case[0].size
    leaves = [
        [f(rank).requires_grad_() for rank in range(size)]
        for f in (block, begin, lambda r: block(r + 40), lambda _: torch.tensor(0.5).double())
    ]
    blocks, firsts, factors, scales = leaves
    carries = []
    for rank in range(size):
        carry: Carry = (firsts[rank], torch.tensor(0))
        for s in sources(case, rank):
            if not (skips and s > rank):
                carry = step(s, carry, blocks[s], factors[rank], scales[rank])
        carries.append(carry)
    torch.stack([loss_of(carry, rank) for rank, carry in enumerate(carries)]).sum().backward()
    values = [[carry[0].detach(), carry[1]] for carry in carries]
    grads = [[x.grad for x in row if x.grad is not None] for row in zip(*leaves, strict=True)]
    return [[*value, *grad] for value, grad in zip(values, grads, strict=True)]


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("skips", [False, True])
def test_scan_equals_one_process(world: World, case: Case, skips: bool) -> None:
    expected = in_one_process(case, skips=skips)
    for outcome, reference in zip(world(scanned, case[0].size, case, skips), expected, strict=True):
        for got, wanted in zip(outcome, reference, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def random_steps(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)

    def masked(source: int, carry: Tensor, block: Tensor) -> Tensor:
        del source
        return nn.functional.dropout(carry, 0.3) + nn.functional.dropout(block, 0.5)

    return check_adjoint(
        exchange,
        lambda carry, x: exchange.ring_scan(masked, carry, x),
        begin(exchange.rank),
        block(exchange.rank),
    )


@pytest.mark.parametrize("size", SIZES)
def test_backward_draws_the_same_random_numbers(world: World, size: int) -> None:
    assert max(world(random_steps, size)) <= 1e-12


def refused(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    x, w = torch.ones(3), torch.ones(4, 3, requires_grad=True)
    with pytest.raises(CapturedTensorError, match=r"ring_scan.*shape \(4, 3\)"):
        exchange.ring_scan(lambda _, carry, b: carry + (w @ b).sum(), x, x)
    with pytest.raises(ArgumentError, match="must return the next carry"):
        exchange.ring_scan(lambda *_: None, x, x)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must return the same tree"):
        exchange.ring_scan(lambda _, carry, b: (carry, b), x, x)  # type: ignore[arg-type,return-value]
    with pytest.raises(ArgumentError, match="wrote to a tensor that it was given"):
        exchange.ring_scan(lambda _, carry, b: carry.detach().add_(b), x.clone(), x)
    carry = exchange.ring_scan(lambda _, carry, b: carry * b.sum(), x, x.clone().requires_grad_())
    with pytest.raises(ArgumentError, match="cannot be differentiated twice"):
        carry.sum().backward(create_graph=True)


@pytest.mark.parametrize("size", SIZES)
def test_steps_that_cannot_be_run_again_are_refused(world: World, size: int) -> None:
    world(refused, size)


def untouched_carry(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    first = torch.ones(3)
    carry = exchange.ring_scan(lambda _, carry, __: carry, first, torch.ones(2))
    return carry.data_ptr() != first.data_ptr()


@pytest.mark.parametrize("size", SIZES)
def test_the_result_is_no_view_of_the_first_carry(world: World, size: int) -> None:
    assert all(world(untouched_carry, size))
