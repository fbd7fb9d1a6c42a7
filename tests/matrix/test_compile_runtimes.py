"""Compiled modules that exchange, inside what people train with: DDP, Lightning, Fabric."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.compiling import graphs
from tests.support.probe import NAMESPACES, fabric, loader, probe_class, trainer

FEATURE = "torch.compile, fullgraph"
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.matrix)]
# The first for every day.
LIGHTNINGS = [NAMESPACES[0], pytest.param(NAMESPACES[1], marks=pytest.mark.matrix)]


class Ringed(nn.Module):
    """Its loss needs the neighbours; rank 0's does not look at what one exchange brought."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 3).double()
        self.head = nn.Linear(3, 2).double()
        self.exchange = exchange

    def forward(self, x: Tensor) -> Tensor:
        mine = self.layer(x)
        received = self.exchange.exchange(to_left=mine, to_right=mine * 2)
        far = self.exchange.shift(self.head(mine), 2)
        loss = (mine * received.from_left - received.from_right).square().mean()
        return self.exchange.join(loss if self.exchange.rank == 0 else loss + far.square().mean())


def weights_after(model: Any, rank: int, backward: Any = Tensor.backward) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randn(5, 4, generator=generator, dtype=torch.float64))
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def assert_close(expected: list[Tensor], found: list[Tensor]) -> None:
    for want, have in zip(expected, found, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-12, atol=1e-12)


def with_ddp(backend: str, outside: bool) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    torch.compiler.reset()
    expected = weights_after(DistributedDataParallel(Ringed(exchange)), exchange.rank)
    if outside:
        model = torch.compile(DistributedDataParallel(Ringed(exchange)), backend=backend)
    else:
        compiled = torch.compile(Ringed(exchange), fullgraph=True, backend=backend)
        model = DistributedDataParallel(compiled)
    assert_close(expected, weights_after(model, exchange.rank))
    assert graphs() > 0


@pytest.mark.cell(FEATURE, "raw")
@pytest.mark.matrix
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outside", [True, False])
def test_ddp_around_a_compiled_module_and_inside_of_one(
    rank_pool: Any, backend: str, outside: bool
) -> None:
    rank_pool.run(with_ddp, backend, outside, size=2, timeout=240)


def ringed_module(namespace: str) -> Any:
    class Module(probe_class(namespace)):  # type: ignore[misc]  # of whichever namespace
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(4, 1)
            self.exchange = Exchange(Ring, self.adapter)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            mine = self.layer(batch[0])
            return self.exchange.join((mine * self.exchange.shift(mine)).mean())

        def validation_step(self, batch: list[Tensor], _: int) -> Tensor:
            return self.exchange.shift(batch[0]).sum()

    return Module()


def in_lightning(namespace: str, backend: str) -> None:
    torch.compiler.reset()
    trained = []
    for compiling in (False, True):
        module = ringed_module(namespace)
        given: Any = torch.compile(module, fullgraph=True, backend=backend) if compiling else module
        run = trainer(namespace, max_epochs=2)
        run.fit(given, loader(), loader())
        assert run.global_step == 4
        trained.append([p.detach().clone() for p in module.parameters()])
    torch.testing.assert_close(trained[0], trained[1])
    assert graphs() > 0


@pytest.mark.cell(FEATURE, "lightning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("namespace", LIGHTNINGS)
def test_a_compiled_lightning_module(rank_pool: Any, namespace: str, backend: str) -> None:
    rank_pool.run(in_lightning, namespace, backend, size=2, timeout=240)


class Scored(nn.Module):
    """The part of a LightningModule that exchanges."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.exchange = exchange

    def forward(self, x: Tensor) -> Tensor:
        mine = self.layer(x)
        self.exchange.shift(mine * 2)
        return self.exchange.join((mine * self.exchange.shift(mine)).mean())


def inside_a_module_that_logs(namespace: str, backend: str) -> None:
    class Module(probe_class(namespace)):  # type: ignore[misc]  # of whichever namespace
        def __init__(self, compiling: bool) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = Scored(Exchange(Ring, self.adapter))
            if compiling:
                self.layer.compile(fullgraph=True, backend=backend)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            loss: Tensor = self.layer(batch[0])
            self.log("loss", loss, sync_dist=True)
            return loss

    torch.compiler.reset()
    trained = []
    for compiling in (False, True):
        module = Module(compiling)
        run = trainer(namespace, max_epochs=2)
        run.fit(module, loader(), loader())
        assert "loss" in run.callback_metrics
        trained.append([p.detach().clone() for p in module.parameters()])
    torch.testing.assert_close(trained[0], trained[1])
    assert graphs() > 0


@pytest.mark.cell(FEATURE, "lightning")
@pytest.mark.matrix
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("namespace", LIGHTNINGS)
def test_the_part_that_exchanges_is_compiled_in_a_module_that_logs(
    rank_pool: Any, namespace: str, backend: str
) -> None:
    rank_pool.run(inside_a_module_that_logs, namespace, backend, size=2, timeout=240)


def in_fabric(backend: str, fullgraph: bool) -> None:
    torch.compiler.reset()
    trained = []
    for compiling in (False, True):
        runtime = fabric("lightning.pytorch")
        runtime.launch()
        model: Any = Ringed(Exchange(Ring, FabricAdapter(runtime)))
        if compiling:
            model = torch.compile(model, fullgraph=fullgraph, backend=backend)
        # By default Fabric compiles DDP with the module, which torch cannot as a whole graph:
        # "Dynamo does not know how to trace method `set_runtime_stats_and_log` of class `Logger`".
        model = runtime.setup(model, _reapply_compile=not fullgraph)
        trained.append(weights_after(model, runtime.global_rank, runtime.backward))
    assert_close(*trained)
    assert graphs() > 0
    assert not [reason for reason in counters["graph_break"] if "collectives" in reason]


@pytest.mark.cell(FEATURE, "fabric")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_a_compiled_module_that_fabric_sets_up(
    rank_pool: Any, backend: str, fullgraph: bool
) -> None:
    rank_pool.run(in_fabric, backend, fullgraph, size=2, timeout=240)
