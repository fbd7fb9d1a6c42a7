"""What ends a loop of even steps early, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring, even_steps
from collectives.errors import (
    ArgumentError,
    ContextError,
    ExchangeError,
    ExchangeMismatch,
    PendingDropped,
)
from collectives.testing import simulate
from tests.support.worlds import World


def left_together(adapter: Adapter, *, unsized: bool) -> float:
    exchange = Exchange(Ring, adapter)
    for epoch in range(3):
        loader: Iterable[int] = iter(range(9)) if unsized else range(9)
        for step in even_steps(loader, exchange):
            exchange.mark_step(epoch, step)
            if step == 2:
                break
    return exchange.shift(torch.ones(1)).item()


@pytest.mark.parametrize("unsized", [False, True], ids=["sized", "unsized"])
def test_all_ranks_may_leave_at_the_same_step(world: World, *, unsized: bool) -> None:
    assert world(lambda adapter: left_together(adapter, unsized=unsized), 3) == [1.0] * 3


def left_and_kept(adapter: Adapter) -> list[float]:
    """Leave a loop whose iterator is dropped later, at another step of the next on each rank."""
    exchange = Exchange(Ring, adapter)
    found = []
    for _ in range(3):
        kept = [iter(even_steps(range(9), exchange))]
        next(kept[0])
        for step in even_steps(range(4), exchange):
            if step == exchange.rank:
                kept.clear()
            found.append(exchange.shift(torch.tensor(float(step))).item())
    return found


def test_a_loop_that_was_left_on_all_ranks_may_end_at_another_time_on_each(world: World) -> None:
    assert world(left_and_kept, 3) == [[0.0, 1.0, 2.0, 3.0] * 3] * 3


def leave_alone(exchange: Exchange, rank: int) -> None:
    for step in even_steps(iter(range(5)), exchange):
        if rank == 1 and step == 2:
            break
    exchange.shift(torch.ones(1))  # what rank 1 goes on with


@pytest.mark.ranks(3)
def test_a_rank_that_leaves_alone_is_an_error_on_the_others_that_names_the_loop(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv", timeout=1.0)
    with pytest.raises(ExchangeError) as caught:
        leave_alone(exchange, rank)
    text = str(caught.value)
    if rank != 1:
        assert "even_steps(when='first'), next step" in text
        assert "asked for step 4 of even_steps" in text
        assert "left its loop by break or an exception" in text
        assert caught.value.__cause__ is not None


def left_a_sized_loop(exchange: Exchange, rank: int) -> None:
    for step in even_steps(range(5), exchange):
        if rank == 1 and step == 2:
            break
        exchange.shift(torch.ones(1))
    exchange.shift(torch.ones(1))  # like those of the loop, but for the step


@pytest.mark.ranks(2, 3, 5)
def test_a_rank_that_leaves_a_sized_loop_alone_takes_nothing_from_it(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20.0)
    with pytest.raises(ExchangeMismatch, match=r"step: \((2,)?\) / \((2,)?\)") as caught:
        left_a_sized_loop(exchange, rank)
    assert "One of them is in a loop of even_steps, or marks its steps," in str(caught.value)


def test_the_simulator_says_at_once_who_left() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        for step in even_steps(iter(range(5)), exchange):
            if exchange.rank == 1 and step == 2:
                break

    with pytest.raises(ExchangeMismatch, match="asked for step 4 of even_steps"):
        simulate(3, program)


def fail_in_a_loop(exchange: Exchange) -> None:
    for step in even_steps(iter(range(5)), exchange):
        assert 1 // (1 - step) == 1


def test_an_exception_inside_the_loop_passes_through_and_closes_it() -> None:
    exchange = Exchange(Ring, RawDDPAdapter(alone=True))
    with pytest.raises(ZeroDivisionError):
        fail_in_a_loop(exchange)
    assert exchange.shift(torch.ones(1)).item() == 1


def test_different_choices_of_when_do_not_match() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        list(even_steps([1], exchange, when="last" if exchange.rank else "first"))

    with pytest.raises(ExchangeMismatch, match="when='first'"):
        simulate(2, program)


def test_a_loader_that_ends_itself_ends_the_loop_on_all_ranks() -> None:
    def program(adapter: Adapter) -> int:
        exchange = Exchange(Ring, adapter)
        loader = itertools.takewhile(lambda i: exchange.rank != 1 or i < 3, range(9))
        return len(list(even_steps(loader, exchange)))

    assert simulate(4, program) == [3] * 4


@pytest.mark.parametrize("size", [1, 2])
def test_a_dropped_pending_is_raised_at_every_size(size: int) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        exchange.start_shift(torch.ones(1))
        list(even_steps([1], exchange))

    with pytest.raises(PendingDropped):
        simulate(size, program)


def test_wrong_arguments_are_refused_when_the_loop_is_made() -> None:
    exchange = Exchange(Ring, RawDDPAdapter(alone=True))
    with pytest.raises(ArgumentError, match="expected an Exchange, got"):
        even_steps([1], [exchange])  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="'first' or 'last', got 'any'"):
        even_steps([1], exchange, when="any")  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="finite number of seconds"):
        even_steps([1], exchange, timeout=-1)


def test_nothing_is_exchanged_before_the_first_step_is_asked_for() -> None:
    class TooEarly:
        def context(self) -> object:
            raise ContextError("too early")

    early: Adapter = TooEarly()  # type: ignore[assignment]
    steps = even_steps([1], Exchange(Ring, early))
    with pytest.raises(ContextError, match="too early"):
        next(iter(steps))
