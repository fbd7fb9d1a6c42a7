"""Graphs that are kept (torch.export, make_fx, caches), and their Exchange."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Graph, Mesh, Ring
from collectives.errors import ArgumentError, ContextError
from tests.support.compiling import (
    compiled,
    graphs,
    leaf,
    number_of_exchanges,
    outcome,
    run_apart,
)
from tests.support.worlds import World

cell = pytest.mark.cell("torch.compile, fullgraph", "raw")
exported = pytest.mark.cell("torch.export, make_fx", "raw")
slow = pytest.mark.matrix


class Module(nn.Module):
    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.exchange = exchange

    def forward(self, x: Tensor) -> Tensor:
        self.exchange.shift(x)
        received = self.exchange.exchange(to_left=x * self.weight, to_right=x)
        return self.exchange.join(received.from_left + 10 * received.from_right)


def an_exported_module(adapter: Adapter, strict: bool) -> None:
    module = Module(Exchange(Ring, adapter))
    exchange, x = module.exchange, torch.arange(3.0) + module.exchange.rank
    program = torch.export.export(module, (x,), strict=strict)
    with number_of_exchanges(exchange, 2):
        found = program.module()(x)
    assert torch.equal(found, module(x))
    again = program.run_decompositions().module()
    with number_of_exchanges(exchange, 3):
        again(x).sum().backward()  # of both exchanges, one has a gradient
    assert torch.equal(again.get_parameter("weight").grad, 10 * x)


@exported
@pytest.mark.parametrize("strict", [pytest.param(True, marks=slow), False])
def test_torch_export(ranks: World, strict: bool) -> None:
    ranks(an_exported_module, 2, strict)


@exported
@slow
def test_an_exported_program_finds_an_exchange_of_the_same_name_and_topology(
    tmp_path: Path,
) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kept")
    program = torch.export.export(Module(exchange), (torch.ones(3),))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    del exchange, program
    gc.collect()
    with pytest.raises(ContextError, match=r"belongs to rank 0 of 1 of an Exchange that is not"):
        loaded(torch.ones(3))
    other = Exchange(Ring, RawDDPAdapter(), name="kept")
    with number_of_exchanges(other, 2):
        loaded(torch.ones(3))


@exported
@pytest.mark.parametrize("mode", ["real", "fake", pytest.param("symbolic", marks=slow)])
def test_make_fx(exchange: Exchange, mode: Any) -> None:
    def step(x: Tensor) -> Tensor:
        exchange.shift(x)
        return exchange.exchange(to_left=x * 2, to_right=x).from_left + exchange.shift(x, 2)

    x = torch.arange(3.0)
    with torch.no_grad():
        graph = make_fx(step, tracing_mode=mode)(x)
        with number_of_exchanges(exchange, 3):
            found = graph(x)
        assert torch.equal(found, step(x))


@exported
def test_make_fx_records_the_backward_of_every_exchange(exchange: Exchange) -> None:
    module = Module(exchange)

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(module(x).sum(), x)[0]

    x = torch.arange(3.0).requires_grad_()
    graph = make_fx(gradient)(x)
    with number_of_exchanges(exchange, 4):
        assert torch.equal(graph(x), torch.full((3,), 21.0))


@exported
@slow
def test_aot_function(exchange: Exchange) -> None:
    def step(x: Tensor) -> Tensor:
        return exchange.shift(x * x)

    x = leaf(0, 3)
    function = aot_function(step, lambda graph, _: graph)
    assert torch.equal(function(x), x.square())
    assert exchange.join(torch.zeros(())).grad_fn is None  # nothing of it is in the chain


def recomputed(adapter: Adapter, inside: bool, reentrant: bool) -> None:
    exchange = Exchange(Ring, adapter)

    def block(x: Tensor) -> Tensor:
        return exchange.shift(x * x) * x

    def step(x: Tensor) -> Tensor:
        return checkpoint(block, x * 2, use_reentrant=reentrant) * 3  # type: ignore[no-any-return]

    x = leaf(exchange.rank, 3)
    expected = outcome(step, exchange, x)
    if inside:
        function = compiled(step, "aot_eager")
    else:
        kept = compiled(block, "aot_eager")
        function = lambda x: checkpoint(kept, x * 2, use_reentrant=reentrant) * 3  # noqa: E731
    with number_of_exchanges(exchange, 3):
        assert all(map(torch.equal, expected, outcome(function, exchange, x)))


@cell
@slow
@pytest.mark.parametrize(("inside", "reentrant"), [(True, False), (False, False), (False, True)])
def test_checkpoints_in_graphs_and_around_them(ranks: World, inside: bool, reentrant: bool) -> None:
    ranks(recomputed, 2, inside, reentrant)


@cell
def test_copies_have_graphs_of_their_own_and_no_graph_keeps_an_exchange(
    exchange: Exchange,
) -> None:
    def step(exchange: Exchange, x: Tensor) -> Tensor:
        return exchange.shift(x)

    function, x = compiled(step, "eager"), torch.ones(2)
    deep, pickled = copy.deepcopy(exchange), pickle.loads(pickle.dumps(exchange))
    for one in (exchange, deep, pickled, exchange):
        with number_of_exchanges(one, 1):
            function(one, x)
    assert graphs() == 3
    dead = weakref.ref(deep)
    del deep, one
    gc.collect()
    assert dead() is None


@cell
@slow
def test_after_renew_the_graph_is_made_anew(exchange: Exchange) -> None:
    function = compiled(lambda x: exchange.join(exchange.shift(x * x).sum()), "aot_eager")
    x = leaf(0, 2)
    function(x).backward()
    exchange.renew()
    function(x).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 4 * x)
    assert graphs() == 2


def collective(adapter: Adapter, count: int) -> None:
    exchange = Exchange(lambda size: Mesh((size, 1), axes=("y", "x")), adapter)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        y = x * x
        gathered = exchange.all_gather({"y": y}, shapes="same")["y"]
        parts = exchange.reduce_scatter(y, op="max"), exchange.all_to_all(y, shapes="same")
        sums = exchange.all_reduce(y), exchange.all_reduce(y, "mean", axis="y")
        return gathered, *parts, *sums, exchange.broadcast(y, exchange.size - 1)

    function = compiled(step, "aot_eager")
    for rows in (6, 12):
        x = leaf(exchange.rank, rows, count)
        expected = outcome(step, exchange, x)
        assert all(map(torch.equal, expected, outcome(function, exchange, x)))
    assert graphs() == 2


@cell
@slow
@pytest.mark.parametrize(("size", "count"), [(1, 2), (2, 2), (3, 2), (3, 16_000)])
def test_collective_operations(ranks: World, size: int, count: int) -> None:
    """Small ones, and on three ranks those that go round a ring."""
    ranks(collective, size, count, timeout=240)


def over_edges(adapter: Adapter, graph: bool) -> None:
    exchange = Exchange(Graph.exponential if graph else Ring, adapter)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        edges = len(exchange.neighbor_allgather(x * 2))
        moved = exchange.neighbor_alltoall([x * (n + 1) for n in range(edges)])
        mean = exchange.neighbor_allreduce({"x": x * x})["x"]
        return *exchange.neighbor_allgather(x * x), *moved, mean

    function = compiled(step, "aot_eager")
    for rows in (2, 5):
        x = leaf(exchange.rank, rows)
        expected = outcome(step, exchange, x)
        assert all(map(torch.equal, expected, outcome(function, exchange, x)))
    assert graphs() == 2
    with pytest.raises(ArgumentError, match=r"weights must be \d finite numbers"):
        compiled(lambda x: exchange.neighbor_allreduce(x, [1.0] * 9), "eager")(torch.ones(2))


@cell
@slow
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("graph", [True, False])
def test_operations_over_edges(ranks: World, size: int, graph: bool) -> None:
    ranks(over_edges, size, graph, timeout=240)


def halos(adapter: Adapter, mode: Any) -> None:
    periodic = (False, mode == "zeros")
    exchange = Exchange(lambda size: Mesh((size, 1), axes=("y", "x"), periodic=periodic), adapter)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        padded = exchange.halo_exchange(
            x * x, {0: "y", 1: "x"}, {0: (1, 2), 1: 1}, mode, shapes="same"
        )
        return padded, exchange.halo_reduce(padded * 2, {0: "y"}, 1, mode, shapes="same")

    function = compiled(step, "aot_eager")
    for rows in (4, 6):
        x = leaf(exchange.rank, rows, 3)
        expected = outcome(step, exchange, x)
        found = outcome(function, exchange, x)
        assert torch.equal(found[0], expected[0])  # what is summed, is so in another order
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@cell
@slow
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mode", ["zeros", "replicate", "reflect"])
def test_halos(ranks: World, size: int, mode: str) -> None:
    ranks(halos, size, mode, timeout=240)


CACHED = """
import sys, torch
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Mesh
exchange = Exchange(Mesh((1, 1), axes=("y", "x"), periodic=(True, False)), RawDDPAdapter())
function = torch.compile(lambda x: exchange.shift(x + 1, axis=sys.argv[1]), fullgraph=True)
print(function(torch.ones(8)).sum().item(), exchange.stats()["exchanges"])
"""


@cell
@slow
def test_a_cached_graph_of_another_process_is_not_taken_for_this_one(tmp_path: Path) -> None:
    def printed(axis: str) -> str:
        return run_apart(tmp_path, CACHED, axis).stdout.strip()

    assert [printed("y"), printed("x"), printed("y")] == ["16.0 1", "0.0 1", "16.0 1"]
