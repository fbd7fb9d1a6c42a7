"""torch.compile(fullgraph=True): values, gradients and messages are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Mesh, Ring
from collectives.errors import DeadExchange
from tests.support.compiling import compiled, graphs, leaf, number_of_exchanges, outcome
from tests.support.worlds import World

cell = pytest.mark.cell("torch.compile, fullgraph", "raw")
SIZES = (1, 2, 3)
slow = pytest.mark.matrix
# One of each for every day: to compile takes seconds.
SOME_SIZES = (pytest.param(1, marks=slow), 2, pytest.param(3, marks=slow))
BACKENDS = (pytest.param("eager", marks=slow), "aot_eager", pytest.param("inductor", marks=slow))


def both(
    function: Callable[..., object], exchange: Exchange, backend: str, *inputs: Tensor
) -> None:
    """Run it in eager mode and compiled, and compare all bits."""
    expected = outcome(function, exchange, *inputs)
    found = outcome(compiled(function, backend), exchange, *inputs)
    for want, have in zip(expected, found, strict=True):
        assert torch.equal(want, have)


def sizes_that_change(adapter: Adapter, backend: str) -> int:
    exchange = Exchange(Ring, adapter)

    def step(a: Tensor, b: Tensor) -> Tensor:
        received = exchange.exchange(to_left=a * 2, to_right=b)
        return exchange.shift(received.from_left * b) + received.from_right * a

    function = compiled(step, backend)
    for n in (4, 6, 5):
        a, b = leaf(exchange.rank, n, 2), leaf(exchange.rank + 10, n, 2)
        expected = outcome(step, exchange, a, b)
        with number_of_exchanges(exchange, 4):
            found = outcome(function, exchange, a, b)
        assert all(map(torch.equal, expected, found))
    return graphs()


@cell
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SOME_SIZES)
def test_values_and_gradients_are_those_of_eager_mode_with_sizes_that_change(
    ranks: World, size: int, backend: str
) -> None:
    found = ranks(sizes_that_change, size, backend, timeout=240)
    assert found == [2] * size  # graphs: for the first size, and for any


def axes_and_pairs(adapter: Adapter, backend: str) -> None:
    exchange = Exchange(
        lambda size: Mesh((1, size), axes=("y", "x"), periodic=(True, False)), adapter
    )
    last = exchange.size - 1

    def step(a: Tensor) -> tuple[Tensor, ...]:
        along, across = exchange.shift(a, -1, axis="x", fill=7.5), exchange.shift(a, axis="y")
        one_way = exchange.exchange(to_left=None, to_right=(a, a.float()), axis="x").from_left
        number = exchange.shift(a.sum(), axis="x")
        pairs = exchange.permute({"b": a.T, "a": a[::2]}, [(0, last)], fill=-1)
        return along, across, number, *one_way, pairs["a"], pairs["b"]

    both(step, exchange, backend, leaf(exchange.rank, 4, 3))


@cell
@slow
@pytest.mark.parametrize("size", SIZES)
def test_mesh_axes_open_ends_pairs_and_trees(ranks: World, size: int) -> None:
    ranks(axes_and_pairs, size, "aot_eager")


def other_shapes(adapter: Adapter, backend: str) -> None:
    exchange = Exchange(Ring, adapter)
    left = (exchange.rank - 1) % exchange.size
    like = torch.empty(2 + left, dtype=torch.float64)
    both(
        lambda x: exchange.shift(x, like=like),
        exchange,
        backend,
        leaf(exchange.rank, 2 + exchange.rank),
    )


@cell
@slow
@pytest.mark.parametrize("size", SIZES)
def test_shapes_that_differ_from_rank_to_rank(ranks: World, size: int) -> None:
    ranks(other_shapes, size, "aot_eager")


def in_a_part_of_the_ranks() -> None:
    group = dist.new_group([0, 2])
    if dist.get_rank() != 1:
        exchange = Exchange(Ring, RawDDPAdapter(group=group))
        both(lambda x: exchange.shift(x) * x, exchange, "aot_eager", leaf(exchange.rank, 3))


@cell
@slow
def test_a_group_of_some_ranks(rank_pool: object) -> None:
    rank_pool.run(in_a_part_of_the_ranks, size=3)  # type: ignore[attr-defined]


def unused_results(adapter: Adapter, backend: str) -> None:
    exchange = Exchange(Ring, adapter)

    def step(x: Tensor) -> Tensor:
        exchange.shift(x)
        exchange.shift(torch.arange(3))
        with torch.no_grad():
            exchange.exchange(to_left=x, to_right=x)
        return x * 2

    function = compiled(step, backend)
    with number_of_exchanges(exchange, 4):  # and the backward of the first
        outcome(function, exchange, leaf(exchange.rank, 2))
    with torch.no_grad(), number_of_exchanges(exchange, 3):
        function(torch.ones(2))
    with torch.inference_mode(), number_of_exchanges(exchange, 3):
        function(torch.ones(2))


@cell
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [pytest.param(1, marks=slow), 2])
def test_an_exchange_whose_results_are_unused_is_not_removed(
    ranks: World, size: int, backend: str
) -> None:
    ranks(unused_results, size, backend, timeout=240)


def rank_dependent(exchange: Exchange, x: Tensor, *, inside: bool) -> Tensor:
    """A causal loop: blocks of later ranks are not looked at, on the last rank's loss none is."""
    block, loss = x, x.square().sum()
    for hop in range(1, exchange.size):
        block = exchange.shift(block)
        if exchange.rank - hop >= 0 and exchange.rank < 2:
            loss = loss + (hop * block * x.detach()).sum()
    return exchange.join(loss) if inside else loss


def graphs_that_differ(adapter: Adapter, backend: str, inside: bool, compiling: str) -> None:
    exchange = Exchange(Ring, adapter)

    def step(x: Tensor) -> Tensor:
        return rank_dependent(exchange, x, inside=inside)

    x = leaf(exchange.rank, 3)
    expected = outcome(step, exchange, x)
    alone = compiling == "one rank" and exchange.rank != 0
    function = step if alone else compiled(step, backend)
    for _ in range(2):
        hops = exchange.size - 1
        with number_of_exchanges(exchange, 2 * hops):
            assert all(map(torch.equal, expected, outcome(function, exchange, x)))


@cell
@pytest.mark.parametrize("compiling", [pytest.param("all ranks", marks=slow), "one rank"])
@pytest.mark.parametrize("inside", [pytest.param(True, marks=slow), False])
@pytest.mark.parametrize("size", SOME_SIZES)
def test_every_rank_runs_every_backward_whatever_its_graph(
    ranks: World, size: int, inside: bool, compiling: str
) -> None:
    ranks(graphs_that_differ, size, "aot_eager", inside, compiling)


@cell
@slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("inside", [True, False])
def test_every_rank_runs_every_backward_with_any_backend(
    ranks: World, inside: bool, backend: str
) -> None:
    ranks(graphs_that_differ, 3, backend, inside, "all ranks", timeout=240)


def across_the_border(adapter: Adapter, backend: str) -> None:
    """Eager, compiled, eager, compiled: one chain, which only the last loss is tied to."""
    exchange = Exchange(Ring, adapter)
    plain = exchange.shift

    def region(x: Tensor) -> Tensor:
        return exchange.shift(x * 2)

    function = compiled(region, backend)
    for _ in range(2):
        x = leaf(exchange.rank, 2)
        with number_of_exchanges(exchange, 8):
            a = plain(x)
            function(a.detach())
            plain(x.detach())
            b = function(a)
            loss = b.sum() if exchange.rank == 0 else x.sum() * 0
            exchange.join(loss).backward()
        exchange.check_backward()
        assert x.grad is not None
        user = (exchange.rank + 2) % exchange.size  # who has my numbers after two shifts
        assert torch.equal(x.grad, torch.full_like(x, 2.0 if user == 0 else 0.0))


@cell
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SOME_SIZES)
def test_the_chain_goes_in_and_out_of_compiled_code(ranks: World, size: int, backend: str) -> None:
    ranks(across_the_border, size, backend, timeout=240)


def forgotten_join(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    function = compiled(lambda x: exchange.shift(x, 3), "aot_eager")
    x = leaf(exchange.rank, 2)
    used = exchange.shift(x)
    function(x)
    used.sum().backward()
    with pytest.raises(DeadExchange) as caught:
        exchange.check_backward()
    return str(caught.value)


@cell
@slow
def test_a_backward_that_was_left_out_is_named_by_its_line(ranks: World) -> None:
    for text in ranks(forgotten_join, 2):
        assert "shift(offset=3, axis='ring') at" in text
        assert "test_compile.py:" in text


def two_losses(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        first = exchange.join(exchange.shift(x).sum())
        return first, exchange.join(exchange.shift(x, 2).sum() * 10)

    x = leaf(exchange.rank, 1)
    first, second = compiled(step, "aot_eager")(x)
    (first + second).backward()
    exchange.check_backward()
    assert exchange.join(torch.zeros(())).grad_fn is None  # nothing is left to be joined
    assert x.grad is not None
    return x.grad.tolist()


@cell
@slow
@pytest.mark.parametrize("size", SIZES)
def test_two_joins_in_one_graph(ranks: World, size: int) -> None:
    assert ranks(two_losses, size) == [[11.0]] * size


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def some_compile(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        nested: Any = exchange.shift({"b": [x, x * 2], "a": (x, {"c": x})})
        pair = exchange.exchange(to_left=Pair(x, x), to_right=[x]).from_right
        gathered = exchange.all_gather((x,), shapes="same")[0]
        edges = exchange.neighbor_allreduce([x, x * x])
        halo = exchange.halo_exchange(x, {0: "ring"}, shapes="same")
        return *nested["b"], nested["a"][1]["c"], pair.left, gathered, *edges, halo

    x = leaf(exchange.rank, 3, 2)
    expected = outcome(step, exchange, x)
    function = compiled(step, "aot_eager") if exchange.rank else step
    torch.testing.assert_close(outcome(function, exchange, x), expected, rtol=1e-13, atol=1e-13)


@cell
@slow
@pytest.mark.parametrize("size", [2, 3])
def test_some_ranks_compile_and_others_do_not(ranks: World, size: int) -> None:
    """How trees are built is part of matching."""
    ranks(some_compile, size, timeout=240)
