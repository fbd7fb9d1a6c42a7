"""Started exchanges: order, overlap, what is sent, what is thrown away."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Pending, Received, Ring
from collectives.engine import Engine
from collectives.errors import ArgumentError, ExchangeError, PendingDropped
from collectives.flight import Flight
from tests.support.worlds import SIZES, World

EVENTS: list[str] = []


class Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        del ctx
        EVENTS.append("compute")
        return grads[0]


def in_any_order(adapter: Adapter, tags: bool) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([float(exchange.rank)], requires_grad=True)
    first = exchange.start_shift(x)
    second = exchange.start_exchange(to_left=2 * x, to_right=[3 * x, torch.arange(2)])
    third = exchange.shift(5 * x, -1)
    # Without tags the order of wait() is the order of the adjoints: one for all ranks.
    if exchange.rank % 2 or not tags:
        received, one = second.wait(), first.wait()
    else:
        one, received = first.wait(), second.wait()
    assert isinstance(received, Received)
    loss = one + received.from_right + received.from_left[0] + third
    exchange.join(loss.sum()).backward()
    assert x.grad is not None
    return [loss.item(), x.grad.item()]


@pytest.mark.parametrize("size", SIZES)
def test_started_exchanges_may_be_waited_for_in_any_order(world: World, size: int) -> None:
    left, right = [(r - 1) % size for r in range(size)], [(r + 1) % size for r in range(size)]
    expected = [[4.0 * left[r] + 7.0 * right[r], 11.0] for r in range(size)]
    assert world(in_any_order, size, world.name != "batches") == expected


def overlapping(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    def started(*args: Any) -> Flight:
        EVENTS.append("start")
        return start(*args)

    def waited(flight: Flight) -> list[Tensor]:
        EVENTS.append("wait")
        return wait(flight)

    start, wait = Engine.start, Flight.wait
    monkeypatch.setattr(Engine, "start", started)
    monkeypatch.setattr(Flight, "wait", waited)
    EVENTS.clear()
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2, requires_grad=True)
    pending = exchange.start_shift(x)
    between = Probe.apply(x)  # type: ignore[no-untyped-call]
    EVENTS.append("compute")
    (pending.wait().sum() + between.sum()).backward()
    return EVENTS


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_computed_in_between_overlaps_in_backward_too(rank_pool: object, size: int) -> None:
    world = World("gloo", rank_pool)  # type: ignore[arg-type]
    order = ["start", "compute", "wait", "start", "compute", "wait"]

    def program(adapter: Adapter) -> list[str]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            return overlapping(adapter, monkeypatch)

    assert world(program, size) == [order] * size


def waited_twice(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    pending = exchange.start_shift(torch.ones(3))
    assert "under way" in repr(pending)
    first = pending.wait()
    assert "waited for" in repr(pending)
    return pending.wait() is first


@pytest.mark.parametrize("size", SIZES)
def test_wait_is_idempotent(world: World, size: int) -> None:
    assert all(world(waited_twice, size))


def modified(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3)
    pending = exchange.start_shift(x)
    x.add_(1)
    return error_of(pending)


def error_of(pending: Pending[torch.Tensor]) -> str:
    try:
        pending.wait()
    except ExchangeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("size", SIZES)
def test_writing_to_what_is_being_sent_is_named(world: World, size: int) -> None:
    for text in world(modified, size):
        assert "modified in place between start and wait()" in text
        assert "test_pending.py:" in text


def replaced(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    out = torch.zeros(300_000)
    pending = exchange.start_shift(torch.ones(300_000), out=out)
    out.data = torch.full((300_000,), 7.0)
    return error_of(pending)


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_that_is_given_other_memory_is_named_and_the_old_one_kept(
    world: World, size: int
) -> None:
    for text in world(replaced, size):
        assert "modified in place between start and wait()" in text


def dropped(adapter: Adapter, grad: bool) -> list[str]:
    exchange = Exchange(Ring, adapter)
    texts = []
    for act in (
        lambda: exchange.shift(torch.ones(1)),
        lambda: exchange.mark_step(1),
        exchange.close,
    ):
        with torch.set_grad_enabled(grad):
            exchange.start_shift(torch.ones(2))
        gc.collect()
        with pytest.raises(PendingDropped) as caught:
            act()
        texts.append(str(caught.value))
    with pytest.raises(ExchangeError, match="was closed"):
        exchange.shift(torch.ones(1))
    return texts


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_dropped_pending_is_named_at_the_next_call(world: World, size: int, grad: bool) -> None:
    """Law 3: also on one rank. The message arrives all the same: no peer waits for it."""
    for texts in world(dropped, size, grad):
        assert len(texts) == 3
        for text in texts:
            assert "shift(offset=1, axis='ring') started at" in text
            assert "test_pending.py:" in text
            assert "wait()" in text


def in_flight(adapter: Adapter) -> list[float]:
    """The next block is on its way while the loss of this one runs backward."""
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([1.0 + exchange.rank], requires_grad=True)
    y = exchange.shift(x)
    frozen, wanted = exchange.start_shift(2 * x.detach()), exchange.start_shift(3 * x, -1)
    exchange.join((y * (exchange.rank + 1)).sum()).backward()
    assert x.grad is not None
    gradients = [x.grad.item()]
    x.grad = None
    late = frozen.wait() + wanted.wait()
    exchange.join((late * (exchange.rank + 1)).sum()).backward()
    exchange.mark_step()
    again: Tensor | None = x.grad
    assert again is not None
    return [*gradients, again.item(), late.item()]


@pytest.mark.parametrize("size", SIZES)
def test_a_started_exchange_may_be_in_flight_during_a_backward(world: World, size: int) -> None:
    def expected(rank: int) -> list[float]:
        left, right = (rank - 1) % size, (rank + 1) % size
        return [right + 1.0, 3.0 * (left + 1), 2.0 * (left + 1) + 3.0 * (right + 1)]

    assert world(in_flight, size) == [expected(r) for r in range(size)]


def one_buffer_twice(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)
    out, mine = torch.zeros(2), torch.ones(2)
    pending = exchange.start_shift(mine, out=out)
    for act in (
        lambda: exchange.start_shift(mine * 2, out=out),
        lambda: exchange.shift(mine * 2, out=out),
    ):
        with pytest.raises(ArgumentError, match="has not been waited for"):
            act()
    pending.wait()
    exchange.shift(mine * 3, out=out)
    second = exchange.start_shift(mine, out=out)
    out.add_(1)
    with pytest.raises(ExchangeError, match="given as out="):
        second.wait()
    return exchange.start_shift(mine * 4, out=out).wait().sum().item()


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_belongs_to_one_exchange_at_a_time(world: World, size: int) -> None:
    assert world(one_buffer_twice, size) == [8.0] * size
