"""Compiled code runs each exchange where eager mode does, in forward or in backward."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.utils.checkpoint import checkpoint

from collectives import Adapter, Exchange, Ring
from collectives.errors import ArgumentError
from tests.support.compiling import compiled, leaf, number_of_exchanges
from tests.support.worlds import World

cell = pytest.mark.cell("torch.compile, fullgraph", "raw")
slow = pytest.mark.matrix
BACKENDS = ("aot_eager", pytest.param("inductor", marks=slow))
SIZES = (pytest.param(1, marks=slow), 2, pytest.param(3, marks=slow))
Step = Callable[[Exchange, Tensor], Tensor]


def one_unused(e: Exchange, x: Tensor) -> Tensor:
    """Each rank leaves another result unused."""
    a, b = e.shift(x * 2), e.shift(x * 3)
    return e.join((x * (b if e.rank == 0 else a)).sum())


def none_used(e: Exchange, x: Tensor) -> Tensor:
    e.shift(x)
    e.exchange(to_left=x * 2, to_right=(x, x.long()))
    return e.join(x.sum())


def no_gradient(e: Exchange, x: Tensor) -> Tensor:
    a = e.shift(x * 2)
    e.shift(x * 3)
    return e.join((a.sign() * x).sum()).round() + x.sum()


def two_losses(e: Exchange, x: Tensor) -> Tensor:
    first = e.join(e.shift(x).sum())
    e.shift(x)
    return first * e.join(x.sum())


def not_joined(e: Exchange, x: Tensor) -> Tensor:
    e.shift(x)
    e.shift(x * 2)
    return x.sum()


def half_precision(e: Exchange, x: Tensor) -> Tensor:
    e.shift(x)
    return e.join((e.shift(x * 2) * x).sum().to(torch.bfloat16).reshape(1)).double().sum()


def other_operations(e: Exchange, x: Tensor) -> Tensor:
    gathered = e.all_gather(x, shapes="same")
    e.all_reduce(x * 2)
    e.halo_exchange(x, {0: "ring"}, shapes="same")
    e.neighbor_allreduce(x)
    e.broadcast(x, 0)
    return e.join((gathered * gathered).sum())


def used_in_part_of_a_checkpoint(e: Exchange, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        used, _ = e.shift((x * 2, x * 3))
        return used * x

    return e.join(checkpoint(block, x * 2, use_reentrant=False).sum())


STEPS: dict[Step, tuple[int, tuple[int, ...]]] = {  # forward exchanges, phases of those in backward
    one_unused: (2, (1, 1)),
    none_used: (2, (1, 1)),
    no_gradient: (2, (1, 1)),
    two_losses: (2, (1, 1)),
    not_joined: (2, (1, 1)),
    half_precision: (2, (1, 1)),
    other_operations: (5, (1,) * 5),
    used_in_part_of_a_checkpoint: (1, (0, 1)),
}


def phases(graph: torch.fx.GraphModule) -> tuple[int, ...]:
    operator = torch.ops.collectives.exchange.default
    scripts = [node.args[4] for node in graph.graph.nodes if node.target is operator]
    return tuple(json.loads(str(script))["phase"] for script in scripts)


@cell
@pytest.mark.parametrize(
    "step", [s if s is one_unused else pytest.param(s, marks=slow) for s in STEPS]
)
@pytest.mark.parametrize("partition", [min_cut_rematerialization_partition, default_partition])
def test_the_forward_graph_holds_no_backward_exchange_nor_the_other_way_round(
    exchange: Exchange, partition: Any, step: Step
) -> None:
    found: dict[str, set[tuple[int, ...]]] = {"forward": set(), "backward": set()}

    def kept(name: str) -> Callable[[torch.fx.GraphModule, object], Callable[..., Any]]:
        def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
            found[name].add(phases(graph))
            return make_boxed_func(graph.forward)

        return keep

    backend = aot_autograd(
        fw_compiler=kept("forward"), bw_compiler=kept("backward"), partition_fn=partition
    )
    function = compiled(lambda x: step(exchange, x), backend)
    forward, backward = STEPS[step]
    for size in (4, 6, 5):
        x = leaf(0, size)
        with number_of_exchanges(exchange, forward):
            loss = function(x)
        with number_of_exchanges(exchange, len(backward)):
            loss.backward()
        expected = leaf(0, size)
        step(exchange, expected).backward()
        exchange.check_backward()  # what was not joined is no part of what comes
        torch.testing.assert_close(x.grad, expected.grad, rtol=1e-12, atol=1e-12)
    assert found == {"forward": {(0,) * forward}, "backward": {backward}}


def losses(adapter: Adapter, backend: str, mode: str) -> None:
    exchange = Exchange(Ring, adapter, timeout=20)
    grads = []
    for function in (one_unused, compiled(one_unused, backend)):
        for size in (4, 6, 5):
            x, y = leaf(exchange.rank, size), leaf(exchange.rank + 5, size)
            with number_of_exchanges(exchange, 2):
                loss = function(exchange, x)
            if mode == "two forwards, one backward":
                loss = loss + function(exchange, y)
            elif mode == "an exchange between":
                exchange.all_reduce(loss.detach(), op="mean")
            elif mode == "a loss that is only looked at":
                exchange.mark_step(size)
                loss = function(exchange, y)
            with number_of_exchanges(exchange, 4 if mode.startswith("two") else 2):
                loss.backward()
            exchange.mark_step(0)
            grads.append([z.grad for z in (x, y) if z.grad is not None])
    for expected, found in zip(grads[:3], grads[3:], strict=True):
        for want, have in zip(expected, found, strict=True):
            torch.testing.assert_close(have, want, rtol=0, atol=0)


@cell
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("two forwards, one backward", marks=slow),
        "an exchange between",
        pytest.param("a loss that is only looked at", marks=slow),
    ],
)
def test_nothing_of_backward_runs_before_it_is_asked_for(
    ranks: World, mode: str, size: int, backend: str
) -> None:
    ranks(losses, size, backend, mode, timeout=240)


@cell
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"activation_memory_budget": 0.5}, r"activation_memory_budget=0\.5 lets the compiler"),
        ({"aggressive_recomputation": True}, r"config\.aggressive_recomputation=True lets"),
        ({"ban_recompute_not_in_allowlist": False}, r"ban_recompute_not_in_allowlist=False lets"),
    ],
)
def test_what_would_exchange_again_in_backward_is_refused(
    exchange: Exchange, options: dict[str, Any], text: str
) -> None:
    function = compiled(lambda x: one_unused(exchange, x), "aot_eager")
    with config.patch(**options), pytest.raises(ArgumentError, match=text):
        function(leaf(0, 3))
    with config.patch(**options), torch.no_grad(), number_of_exchanges(exchange, 2):
        function(leaf(0, 3))


@cell
@slow
def test_a_memory_budget_of_a_region_is_refused_too(exchange: Exchange) -> None:
    def step(x: Tensor) -> Tensor:
        with torch.autograd.graph.region_activation_memory_budget(0.25):
            return one_unused(exchange, x)

    with pytest.raises(ArgumentError, match=r"activation_memory_budget=0\.25"):
        compiled(step, "aot_eager")(leaf(0, 3))
