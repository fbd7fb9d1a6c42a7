"""Each exchange is a named range in torch's profiler and in Lightning's."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from adapters.fabric import FabricAdapter
from adapters.lightning import exchange_callback
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Mesh, Ring
from collectives.ranges import WATCHERS
from tests.support.probe import NAMESPACES, fabric, loader, ring_class, trainer

# Kineto's own, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")

SHIFT = "collectives::shift[offset=1,axis=ring]"


def ranges(seen: Any) -> dict[str, int]:
    """Return how often each range of ours was seen."""
    return {e.key: e.count for e in seen.key_averages() if e.key.startswith("collectives::")}


def step(exchange: Exchange) -> None:
    x = torch.ones(4, requires_grad=True)
    arrived = exchange.shift(x)
    pending = exchange.start_exchange(to_left=x, to_right=x)
    loss = exchange.join((arrived * pending.wait().from_left).sum())
    loss.backward()


OF_A_STEP = {
    f"{SHIFT} kv": 1,
    f"{SHIFT} kv backward": 1,
    "collectives::exchange[axis=ring] kv post": 1,
    "collectives::exchange[axis=ring] kv wait": 1,
    "collectives::exchange[axis=ring] kv backward post": 1,
    "collectives::exchange[axis=ring] kv backward wait": 1,
}


@pytest.mark.cell("torch.profiler", "raw")
@pytest.mark.ranks(1, 2)
def test_forward_backward_post_and_wait_are_ranges(tmp_path: Path, rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv")
    step(exchange)  # nobody looks
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step(exchange)
    assert ranges(seen) == OF_A_STEP
    path = tmp_path / f"{rank}.json"
    seen.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert OF_A_STEP.keys() <= {event["name"] for event in events}


@pytest.mark.cell("torch.profiler", "raw")
@pytest.mark.ranks(3)
def test_every_operation_has_a_range_of_its_own_name() -> None:
    exchange = Exchange(lambda size: Mesh((1, size), axes=("y", "x")), RawDDPAdapter())
    x = torch.ones(4, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        exchange.permute(x, [(0, 1), (1, 2)])
        exchange.all_reduce(x.detach())
        exchange.shift(x, axis="x", shapes="discover")
        for _ in exchange.ring_pass(x.detach(), axis="x"):
            pass
    names = ranges(seen)
    assert names["collectives::permute[0->1,1->2]"] == 1
    assert names["collectives::shift[offset=1,axis=x] shapes"] == 1
    assert {name.partition("[")[0] for name in names} == {
        f"collectives::{operation}" for operation in ("permute", "all_reduce", "shift", "ring_pass")
    }


@pytest.mark.cell("torch.profiler", "fabric")
@pytest.mark.ranks(2)
def test_ranges_are_seen_in_a_fabric_loop() -> None:
    runtime = fabric("lightning.pytorch")
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime), name="kv")
    model, _ = runtime.setup(layer := torch.nn.Linear(4, 1), torch.optim.SGD(layer.parameters()))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        mine = model(torch.ones(2, 4))
        runtime.backward(exchange.join((mine * exchange.shift(mine)).sum()))
    assert ranges(seen) == {f"{SHIFT} kv": 1, f"{SHIFT} kv backward": 1}


@pytest.mark.cell("torch.profiler", "lightning")
@pytest.mark.ranks(2)
def test_ranges_are_seen_around_a_fit() -> None:
    module = ring_class("lightning.pytorch")()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer("lightning.pytorch").fit(module, loader(), loader())
    assert ranges(seen) == {f"{SHIFT} ring": 2, f"{SHIFT} ring backward": 2}


@pytest.mark.cell("Lightning profilers", "lightning")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_simple_profiler_has_a_row_for_each_kind_of_exchange(namespace: str) -> None:
    profiler = importlib.import_module(f"{namespace}.profilers").SimpleProfiler()
    module = ring_class(namespace)()
    callback = exchange_callback(importlib.import_module(namespace).Callback, module.exchange)
    trainer(namespace, profiler=profiler, callbacks=[callback]).fit(module, loader(), loader())
    durations = profiler.recorded_durations
    for name in (f"{SHIFT} ring", f"{SHIFT} ring backward"):
        assert len(durations[name]) == 2  # of two steps
        assert name in profiler.summary()
    assert WATCHERS == []
    module.exchange.shift(torch.ones(1))  # afterwards nobody is told
    assert len(durations[f"{SHIFT} ring"]) == 2


def fit_under(namespace: str, profiler: Any) -> None:
    module = ring_class(namespace)()
    callback = exchange_callback(importlib.import_module(namespace).Callback, module.exchange)
    options = {
        "limit_train_batches": 4,
        "limit_val_batches": 0,
        "profiler": profiler,
        "callbacks": [callback],
    }
    trainer(namespace, **options).fit(module, loader(), loader())


@pytest.mark.cell("Lightning profilers", "lightning")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_pytorch_profiler_shows_each_range_once(namespace: str, tmp_path: Path) -> None:
    profiler = importlib.import_module(f"{namespace}.profilers").PyTorchProfiler(
        dirpath=tmp_path, schedule=torch.profiler.schedule(wait=0, warmup=1, active=2)
    )
    fit_under(namespace, profiler)
    counts = {event.key: event.count for event in profiler.function_events.key_averages()}
    assert counts[f"{SHIFT} ring"] == counts[f"{SHIFT} ring backward"] == 2
    assert list(tmp_path.glob("*.json"))


@pytest.mark.cell("Lightning profilers", "lightning")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_the_advanced_profiler_counts_calls_of_shift_and_its_own_actions_stay_whole(
    namespace: str, tmp_path: Path, rank: int
) -> None:
    profiler = importlib.import_module(f"{namespace}.profilers").AdvancedProfiler(
        dirpath=tmp_path, filename="seen"
    )
    fit_under(namespace, profiler)
    report = (tmp_path / f"fit-seen-{rank}.txt").read_text()
    assert re.search(r"^ +4 .*\(shift\)$", report, re.MULTILINE)
    assert "Profile stats for: collectives::" not in report


@pytest.mark.cell("Lightning profilers", "lightning")
@pytest.mark.ranks(1, backend=None, fresh=True)
def test_after_an_error_in_a_step_the_profiler_is_let_go_of() -> None:
    class Raising(ring_class("lightning.pytorch")):  # type: ignore[misc]
        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            super().training_step(batch)
            raise ValueError("bad batch")

    profilers = importlib.import_module("lightning.pytorch.profilers")
    module = Raising()
    callback = exchange_callback(
        importlib.import_module("lightning.pytorch").Callback, module.exchange
    )
    fit = trainer(
        "lightning.pytorch",
        devices=1,
        strategy="auto",
        profiler=profilers.SimpleProfiler(),
        callbacks=[callback],
    )
    with pytest.raises(ValueError, match="bad batch"):
        fit.fit(module, loader(), loader())
    assert WATCHERS == []
