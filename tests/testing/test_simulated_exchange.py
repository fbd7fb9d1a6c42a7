"""The Exchange in the simulator: its values at every size, and its mistakes by name."""

from collections.abc import Callable

import pytest
import torch

from collectives import Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import SimulatedAdapter, Simulation, simulate

TAGS = pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])


def both_ways(adapter: SimulatedAdapter) -> tuple[float, float, float]:
    """Return what comes from the left and right, and the gradient of their weighted sum."""
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([float(adapter.rank)], requires_grad=True)
    received = exchange.exchange(to_left=x * 2, to_right=x * 3)
    loss = received.from_left + 10 * received.from_right
    exchange.join(loss.sum()).backward()
    assert x.grad is not None
    return received.from_left.item(), received.from_right.item(), x.grad.item()


@TAGS
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 256])
def test_both_sides_and_their_gradient_are_right(size: int, seed: int | None, tags: bool) -> None:
    results = Simulation(size, seed=seed, tags=tags).run(both_ways)
    assert results == [(3 * ((r - 1) % size), 2 * ((r + 1) % size), 23) for r in range(size)]


def report_of(program: Callable[[SimulatedAdapter], object], *, tags: bool = True) -> str:
    with pytest.raises(ExchangeMismatch) as caught:
        Simulation(3, tags=tags).run(program)
    return str(caught.value)


@TAGS
def test_no_grad_on_one_rank_is_named_with_both_modes(tags: bool) -> None:
    def program(adapter: SimulatedAdapter) -> None:
        with torch.set_grad_enabled(adapter.rank != 1):
            Exchange(Ring, adapter).shift(torch.ones(2, requires_grad=True))

    report = report_of(program, tags=tags)
    assert "grad: grad / no_grad" in report or "grad: no_grad / grad" in report
    assert "rank 1" in report
    assert "use one grad mode on all ranks" in report


@TAGS
def test_a_missing_join_is_named_on_the_rank_that_left_it_out(tags: bool) -> None:
    def program(adapter: SimulatedAdapter) -> None:
        x = torch.ones(2, requires_grad=True)
        shifted = Exchange(Ring, adapter).shift(x)
        (x if adapter.rank == 0 else shifted).sum().backward()

    report = report_of(program, tags=tags)
    assert "rank 0 never ran the backward of exchange #1: did its loss reach it?" in report
    assert "loss = exchange.join(loss)" in report
    assert "rank 1 never" not in report
    assert "rank 2 never" not in report


@TAGS
def test_two_exchanges_swapped_on_one_rank_are_named(tags: bool) -> None:
    def program(adapter: SimulatedAdapter) -> None:
        exchange = Exchange(Ring, adapter)
        for offset in (1, -1) if adapter.rank else (-1, 1):
            exchange.shift(torch.ones(2), offset)

    report = report_of(program, tags=tags)
    assert "differ in op: shift(offset=" in report
    assert "rank 0" in report


def test_a_mismatch_reaches_the_code_around_the_exchange_on_every_rank() -> None:
    def program(adapter: SimulatedAdapter) -> bool:
        with pytest.raises(ExchangeMismatch, match="tensors: "):
            Exchange(Ring, adapter).shift(torch.ones(2 + adapter.rank))
        return True

    assert simulate(3, program) == [True] * 3
