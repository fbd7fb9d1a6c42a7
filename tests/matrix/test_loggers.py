"""Counters and wait times in the loggers of each runtime."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.fabric import FabricAdapter
from adapters.lightning import exchange_callback
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.probe import NAMESPACES, fabric, loader, ring_class, trainer

LOGGERS = ("csv", "tensorboard")
FLOATS = 4 * 2  # bytes of what each rank shifts: two rows of one number


def logger_of(namespace: str, kind: str, folder: Path) -> Any:
    """The Trainer's logger or Fabric's, which have the same names."""
    if kind == "tensorboard":
        pytest.importorskip("tensorboard")
    loggers = importlib.import_module(f"{namespace}.loggers")
    if kind == "tensorboard":
        return loggers.TensorBoardLogger(folder, name="", version=0)
    return loggers.CSVLogger(folder, name="", version=0)


def logged(kind: str, folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what stands in the logger's files: (step, value) by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    if kind == "csv":
        for table in folder.rglob("metrics.csv"):
            with table.open() as lines:
                for row in csv.DictReader(lines):
                    for name, value in row.items():
                        if value and name != "step":
                            found.setdefault(name, []).append((int(row["step"]), float(value)))
        return found
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for events in folder.rglob("events.*"):
        accumulator = EventAccumulator(str(events))
        accumulator.Reload()
        for name in accumulator.Tags()["scalars"]:
            found[name] = [(event.step, event.value) for event in accumulator.Scalars(name)]
    return found


@pytest.mark.cell("logger", "lightning")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("kind", LOGGERS)
def test_the_trainers_logger_gets_bytes_and_wait_times_of_each_operation(
    namespace: str, kind: str, tmp_path: Path, rank: int
) -> None:
    module = ring_class(namespace)()
    callback = exchange_callback(importlib.import_module(namespace).Callback, module.exchange)
    logger = logger_of(namespace, kind, tmp_path)
    trainer(namespace, logger=logger, callbacks=[callback], log_every_n_steps=1).fit(
        module, loader(), loader()
    )
    if rank != 0:  # the Trainer logs on rank 0
        return
    found = logged(kind, tmp_path)
    # Out and in, forward and backward, summed over the steps so far.
    in_all = [(0, 4.0 * FLOATS), (1, 8.0 * FLOATS)]
    assert found["exchange/bytes"] == found["exchange/shift/bytes"] == in_all
    assert found["exchange/shift/exchanges"] == [(0, 2), (1, 4)]
    (_, first), (_, both) = found["exchange/wait_ms"]
    assert 0 < first < both < 60_000
    assert found["exchange/shift/wait_ms"] == found["exchange/wait_ms"]


@pytest.mark.cell("logger", "fabric")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("kind", LOGGERS)
def test_fabric_logs_what_stats_returns(
    namespace: str, kind: str, tmp_path: Path, rank: int
) -> None:
    fabrics = {"lightning.pytorch": "lightning.fabric", "pytorch_lightning": "lightning_fabric"}
    runtime = fabric(namespace, loggers=logger_of(fabrics[namespace], kind, tmp_path))
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime))
    for step in range(2):
        exchange.shift(torch.ones(2))
        runtime.log_dict(exchange.stats(), step=step)
    runtime.logger.finalize("success")
    if rank != 0:
        return
    found = logged(kind, tmp_path)
    assert found["bytes"] == found["shift/bytes"] == [(0, 2.0 * FLOATS), (1, 4.0 * FLOATS)]
    assert 0 < found["wait_ms"][1][1] < 60_000


@pytest.mark.cell("logger", "raw")
@pytest.mark.ranks(1, 2, 3)
def test_stats_give_a_script_numbers_of_each_operation(world_size: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    for _ in range(3):
        exchange.shift(torch.ones(2))
    exchange.all_reduce(torch.ones(2))
    stats = exchange.stats()
    assert all(type(value) in (int, float) for value in stats.values())
    assert stats["shift/exchanges"] == 3
    assert stats["shift/bytes"] == (0 if world_size == 1 else 3 * 2 * FLOATS)
    parts = sum(value for name, value in stats.items() if name.endswith("/bytes"))
    assert stats["bytes"] == stats["bytes_sent"] + stats["bytes_received"] == parts
    assert stats["all_reduce/exchanges"] > 0
    assert 0 <= stats["wait_ms"] <= 1000 * stats["seconds"]
