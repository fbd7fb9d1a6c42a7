"""exchange_callback: hooks, logging and copies, in both Lightnings."""

from __future__ import annotations

import copy
import csv
import importlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.lightning import exchange_callback
from collectives.errors import (
    ArgumentError,
    DeadExchange,
    ExchangeClosed,
    PeerLost,
)
from tests.support.probe import NAMESPACES, loader, probe_class, ring_class, trainer


class NotedExchange:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def stats(self) -> Mapping[str, float]:
        return {"bytes_sent": 64.0 * len(self.calls)}

    def check_backward(self) -> None:
        self.calls.append("check_backward")

    def mark_step(self, *numbers: int) -> None:
        self.calls.append(numbers)

    def abort(self, reason: str) -> None:
        self.calls.append(f"abort: {reason}")

    def close(self) -> None:
        self.calls.append("close")


def callback_class(namespace: str) -> Any:
    return importlib.import_module(namespace).Callback


def run(namespace: str, callback: object, **changes: object) -> Any:
    options: dict[str, object] = {"devices": 1, "strategy": "auto", **changes}
    return trainer(namespace, callbacks=[callback], **options)


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_it_is_a_callback_of_the_callers_lightning_and_follows_the_steps(namespace: str) -> None:
    exchange = NotedExchange()
    callback = exchange_callback(callback_class(namespace), exchange)
    assert isinstance(callback, callback_class(namespace))
    fit = run(namespace, callback, max_epochs=2)
    fit.fit(probe_class(namespace)(), loader(), loader())
    per_step = ["check_backward"]
    steps: list[object] = [(0, 0, 0), *per_step, (0, 1, 1), *per_step]
    steps += [(1, 2, 0), *per_step, (1, 3, 1), *per_step]
    assert exchange.calls == steps


def logged(namespace: str, folder: Path, *, log: bool = True, **changes: object) -> Any:
    """Train with a CSV logger; return (step, bytes_sent) of each row that has counters."""
    logger = importlib.import_module(f"{namespace}.loggers").CSVLogger(folder, name="", version=0)
    callback = exchange_callback(callback_class(namespace), NotedExchange(), log=log)
    module = probe_class(namespace)()
    run(namespace, callback, logger=logger, **changes).fit(module, loader(), loader())
    rows: list[dict[str, str]] = []
    for table in folder.rglob("metrics.csv"):
        with table.open() as lines:
            rows += [row for row in csv.DictReader(lines) if row.get("exchange/bytes_sent")]
    return [(int(row["step"]), float(row["exchange/bytes_sent"])) for row in rows]


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_counters_reach_the_logger_every_so_many_steps(namespace: str, tmp_path: Path) -> None:
    every_two = logged(namespace, tmp_path, limit_train_batches=4, log_every_n_steps=2)
    assert every_two == [(1, 4 * 64), (3, 8 * 64)]


@pytest.mark.ranks(1, backend=None)
def test_accumulated_batches_count_once(tmp_path: Path) -> None:
    every_one = logged(
        "lightning.pytorch",
        tmp_path,
        limit_train_batches=4,
        log_every_n_steps=1,
        accumulate_grad_batches=2,
    )
    assert every_one == [(0, 4 * 64), (1, 8 * 64)]


@pytest.mark.ranks(1, backend=None)
def test_logging_can_be_left_out(tmp_path: Path) -> None:
    assert logged("lightning.pytorch", tmp_path, log=False, log_every_n_steps=1) == []


@pytest.mark.ranks(1, backend=None)
def test_it_closes_at_teardown_only_if_asked() -> None:
    for close_on, expected in (("never", 0), ("teardown", 1)):
        exchange = NotedExchange()
        callback = exchange_callback(
            callback_class("lightning.pytorch"),
            exchange,
            close_on=close_on,  # type: ignore[arg-type]
        )
        run("lightning.pytorch", callback).fit(
            probe_class("lightning.pytorch")(), loader(), loader()
        )
        assert exchange.calls.count("close") == expected


def test_a_copy_is_a_callback_of_the_same_class_with_its_own_exchange() -> None:
    callback = exchange_callback(PlainCallback, NotedExchange(), log=False, close_on="teardown")
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert isinstance(copied, PlainCallback)
        assert copied._exchange is not callback._exchange  # type: ignore[attr-defined]
        assert (copied._log, copied._close_on) == (False, "teardown")  # type: ignore[attr-defined]


class PlainCallback:
    """What makes a class a Callback here."""

    def on_exception(self) -> None: ...


@pytest.mark.parametrize("wrong", [PlainCallback(), torch.nn.Module, 3, None])
def test_anything_but_a_callback_class_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected the Callback class.*pass L\.Callback"):
        exchange_callback(wrong, NotedExchange())


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_trainer_has_one_callback_of_each_exchange_in_every_stage(namespace: str) -> None:
    class Asked(probe_class(namespace)):  # type: ignore[misc] # of whichever namespace
        def configure_callbacks(self) -> list[object]:
            return [exchange_callback(callback_class(namespace), one) for one in exchanges]

    exchanges = [NotedExchange(), NotedExchange()]
    stages = trainer(namespace, devices=1, strategy="auto")
    for epochs in (1, 2):
        stages.fit_loop.max_epochs = epochs
        stages.fit(Asked(), loader(), loader())
        stages.validate(Asked(), loader(), verbose=False)
    callbacks: list[Any] = stages.callbacks  # type: ignore[attr-defined]
    assert [callback._exchange for callback in callbacks] == exchanges
    per_step = 2  # calls
    assert [len(one.calls) for one in exchanges] == [4 * per_step] * 2


# -- with an Exchange --------------------------------------------------------------------------


@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_fit_and_three_tests_use_one_exchange(namespace: str) -> None:
    module = ring_class(namespace)()
    callback = exchange_callback(callback_class(namespace), module.exchange)
    trainer(namespace, callbacks=[callback]).fit(module, loader(), loader())
    assert module.exchange.stats()["exchanges"] == 4  # 2 steps, forward and backward
    for _ in range(3):
        trainer(namespace, callbacks=[callback]).test(module, loader(), verbose=False)
    module.exchange.shift(torch.ones(1))


@pytest.mark.ranks(2)
def test_closed_at_teardown_it_says_so_afterwards() -> None:
    module = ring_class("lightning.pytorch")()
    kind = callback_class("lightning.pytorch")
    callback = exchange_callback(kind, module.exchange, close_on="teardown")
    trainer("lightning.pytorch", callbacks=[callback]).fit(module, loader(), loader())
    with pytest.raises(ExchangeClosed):
        module.exchange.shift(torch.ones(1))


@pytest.mark.ranks(2)
def test_a_step_that_forgets_join_is_named_in_the_step_that_did_it() -> None:
    class Forgetful(ring_class("lightning.pytorch")):  # type: ignore[misc]
        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            mine = self.layer(batch[0])
            used = self.exchange.shift(mine)
            self.exchange.shift(mine, -1)  # nothing depends on it
            loss: torch.Tensor = (mine * used).mean()
            return loss

    module = Forgetful()
    callback = exchange_callback(callback_class("lightning.pytorch"), module.exchange)
    fit = trainer("lightning.pytorch", callbacks=[callback])
    with pytest.raises(DeadExchange, match="shift"):
        fit.fit(module, loader(), loader())
    assert fit.global_step == 0


def raises_on_rank_1(rank: int) -> str:
    class Raising(ring_class("lightning.pytorch")):  # type: ignore[misc]
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            if batch_idx == 1 and rank == 1:
                raise ValueError("bad batch")
            loss: torch.Tensor = super().training_step(batch)
            return loss

    module = Raising()
    callback = exchange_callback(callback_class("lightning.pytorch"), module.exchange)
    expected = ValueError if rank == 1 else PeerLost
    with pytest.raises(expected, match="bad batch") as caught:
        trainer("lightning.pytorch", callbacks=[callback]).fit(module, loader(), loader())
    return str(caught.value)


@pytest.mark.ranks(2, fresh=True)
def test_an_exception_on_one_rank_reaches_the_others_at_once(rank: int) -> None:
    text = raises_on_rank_1(rank)
    assert rank == 1 or "rank 1 aborted: ValueError: bad batch [reported by rank 1]" in text
