"""Ring operations inside what else differentiates: checkpoints, torch.func, other threads, DDP."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.engine import Engine
from collectives.flight import Flight
from tests.support.worlds import SIZES, World

EVENTS: list[str] = []


def term(source: int, block: Tensor, weight: Tensor) -> Tensor:
    return (source + 1) * torch.tanh(block * weight).sum()


def checkpointed(adapter: Adapter, way: str, skips: bool) -> list[Tensor]:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank
    gradients = []
    for wrapped in (False, True):
        x = torch.linspace(0, 1, 4).double().add(rank).requires_grad_()
        w = torch.ones(4, dtype=torch.float64, requires_grad=True)

        def block(x: Tensor, w: Tensor) -> Tensor:
            hidden = x.sin()
            if way == "fold":
                return exchange.ring_fold(term, hidden, w)
            total = torch.zeros((), dtype=torch.float64)
            for source, visiting in exchange.ring_pass(hidden):
                if skips and source > rank:
                    break
                total = total + term(source, visiting, w)
            return total

        value = checkpoint(block, x, w, use_reentrant=False) if wrapped else block(x, w)
        exchange.join(value).backward()
        exchange.check_backward()
        assert x.grad is not None
        assert w.grad is not None
        gradients += [x.grad, w.grad]
    return gradients


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("way", "skips"), [("fold", False), ("pass", False), ("pass", True)])
def test_a_checkpoint_computes_the_loop_again(
    world: World, size: int, way: str, skips: bool
) -> None:
    for x, w, x_again, w_again in world(checkpointed, size, way, skips):
        torch.testing.assert_close(x_again, x, rtol=0, atol=0)
        torch.testing.assert_close(w_again, w, rtol=0, atol=0)


def in_torch_func(adapter: Adapter, way: str, forward_mode: bool) -> list[Tensor]:
    exchange = Exchange(Ring, adapter)
    x = torch.linspace(0, 1, 4).double().add(exchange.rank).requires_grad_()
    w = torch.ones(4, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        if way == "fold":
            return exchange.ring_fold(term, x, w)
        return exchange.ring_scan(lambda s, c, b: c + term(s, b, w), w.sum(), x)

    (expected,) = torch.autograd.grad(value(x), x)
    results = [expected, torch.func.grad(value)(x.detach())]
    if forward_mode:
        results.append(torch.func.jvp(value, (x.detach(),), (torch.ones_like(w),))[1])
    return results


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["fold", "scan"])
def test_torch_func_differentiates_the_loop_itself(world: World, size: int, way: str) -> None:
    forward_mode = world.name == "gloo"  # its level is one for all threads of a process
    results = world(in_torch_func, size, way, forward_mode)
    for expected, gradient, *_ in results:
        torch.testing.assert_close(gradient, expected)
    if forward_mode:  # along ones on all ranks: tangents and gradients sum up to the same
        tangents = torch.stack([tangent for *_, tangent in results])
        torch.testing.assert_close(tangents.sum(), torch.stack([r[0] for r in results]).sum())


def in_another_thread(adapter: Adapter) -> list[float]:
    """Autograd runs the backward of CUDA tensors in a thread of its own."""
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    loss = exchange.ring_fold(lambda _, b: b.square().sum(), x)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert x.grad is not None
    exchange.shift(x)
    return x.grad.tolist()


@pytest.mark.ranks(1, 2, 3)
def test_backward_may_run_in_another_thread(world_size: int) -> None:
    assert in_another_thread(RawDDPAdapter()) == [2.0 * world_size] * 3


@pytest.mark.ranks(2, 3)
def test_ddp_sees_the_gradient_of_parameters_that_the_fold_uses(rank: int, world_size: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2).double())
    data = torch.arange(3.0 * world_size).double().reshape(world_size, 3)
    mine = model(data[rank : rank + 1])
    exchange.ring_fold(lambda _, b, a: (a @ b.T).sum(), mine, mine).backward()
    torch.manual_seed(0)
    alone = nn.Linear(3, 2).double()
    whole = alone(data)
    ((whole @ whole.T).sum() / world_size).backward()
    for got, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad)


class Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        EVENTS.append("compute")
        return x.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        del ctx
        EVENTS.append("compute")
        return grads[0]


def events_of(way: str, direction: str) -> list[str]:
    def started(engine: Engine, flight: Flight, inputs: list[Tensor]) -> Flight:
        EVENTS.append("start")
        return start(engine, flight, inputs)

    def waited(flight: Flight) -> list[Tensor]:
        EVENTS.append("wait")
        return wait(flight)

    start, wait = Engine.start, Flight.wait
    exchange = Exchange(Ring, RawDDPAdapter())
    x = torch.ones(2, requires_grad=True)
    EVENTS.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "start", started)
        patch.setattr(Flight, "wait", waited)
        if way == "fold":
            loss = exchange.ring_fold(lambda _, b: Probe.apply(b).sum(), x)  # type: ignore[no-untyped-call]
        else:
            sums = [Probe.apply(b).sum() for _, b in exchange.ring_pass(x)]  # type: ignore[no-untyped-call]
            loss = exchange.join(torch.stack(sums).sum())
        if direction == "backward":
            EVENTS.clear()
            loss.backward()
    return EVENTS


@pytest.mark.ranks(3)
@pytest.mark.parametrize("way", ["fold", "pass"])
def test_the_next_block_is_on_its_way_while_one_is_computed(way: str) -> None:
    hop = ["start", "compute", "wait"]
    assert events_of(way, "forward") == [*hop, *hop, "compute"]


@pytest.mark.ranks(3)
def test_gradients_are_on_their_way_while_the_next_are_computed() -> None:
    hop = ["start", "compute", "wait"]
    assert events_of("pass", "backward") == ["compute", *hop, *hop]
    # the block's hop, then that of the gradient before: both during the two halves of a term
    term = ["compute", "compute"]
    assert events_of("fold", "backward") == [
        *("start", *term),
        *("wait", "start", *term, "start"),
        *("wait", *term, "wait", "start", "wait"),
    ]
