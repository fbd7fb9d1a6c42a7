from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from examples.demo import REFERENCE, conclude
from examples.record import Record, RecordError, load_records
from examples.verdict import faults

Runs = dict[str, list[Record]]


def record(rank: int, size: int) -> Record:
    return Record(
        run="run",
        rank=rank,
        size=size,
        losses=[8.0 + rank - (size - 1) / 2, 4.0, 2.0],
        accuracy=0.9,
        seconds=1.0,
        bytes_sent=100 * (size - 1),
        parameters={"weight": torch.ones(2, 2), "bias": torch.zeros(2)},
    )


def agreeing() -> Runs:
    return {
        REFERENCE: [record(0, 1)],
        "Lightning": [record(rank, 2) for rank in range(2)],
        "Fabric": [record(rank, 3) for rank in range(3)],
    }


def changed(rank: int, **values: object) -> Runs:
    runs = agreeing()
    runs["Fabric"][rank] = replace(runs["Fabric"][rank], **values)  # type: ignore[arg-type]
    return runs


def found(runs: Runs) -> str:
    return "\n".join(faults(runs, reference=REFERENCE, tolerance=1e-9))


def verdict(runs: Runs, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = conclude(runs, tolerance=1e-9, console=Console(soft_wrap=True))
    return code, capsys.readouterr().out


def test_runs_that_agree_end_with_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verdict(agreeing(), capsys)
    assert code == 0
    assert "All 3 runs agree within 1e-09" in text


def test_one_wrong_loss_of_one_rank_ends_with_exit_code_1_and_names_run_and_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = verdict(changed(2, losses=[9.0, 4.0 + 3e-8, 2.0]), capsys)
    assert code == 1
    assert f"FAILED Fabric disagrees with {REFERENCE}: its loss at step 1 is 4.00000001" in text
    assert "apart by 1.0e-08, tolerance 1e-09" in text


def test_one_wrong_parameter_of_one_rank_is_named() -> None:
    parameters = {"weight": torch.ones(2, 2), "bias": torch.tensor([0.0, 2e-9], dtype=torch.double)}
    assert "parameter bias on rank 1 of 3 is apart by 2.0e-09" in found(
        changed(1, parameters=parameters)
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"losses": [7.0, math.nan, 2.0]}, "its loss at step 1 is nan"),
        (
            {"parameters": {"weight": torch.full((2, 2), math.nan), "bias": torch.ones(2)}},
            "parameter weight on rank 0 of 3 is apart by nan",
        ),
        ({"accuracy": math.nan}, "retrieves nan%"),
    ],
)
def test_a_nan_is_never_agreement(values: dict[str, object], sentence: str) -> None:
    assert sentence in found(changed(0, **values))


def test_ranks_that_sent_nothing_are_a_fault() -> None:
    assert "Fabric sent 0 bytes on rank 1" in found(changed(1, bytes_sent=0))


def test_agreeing_on_a_loss_that_does_not_halve_is_a_fault() -> None:
    runs = {
        title: [replace(record, losses=[8.0, 8.0, 4.5]) for record in records]
        for title, records in agreeing().items()
    }
    assert found(runs).count("did not halve its loss: 8.000 at first, 4.500 at last") == 3


def test_retrieval_near_chance_is_a_fault() -> None:
    assert "Fabric retrieves 30.0% of the captions" in found(changed(0, accuracy=0.3))


def test_records_come_back_from_their_files_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    for rank in (10, 2, 0, *range(3, 10), 1):
        record(rank, 11).save(tmp_path)
    loaded = load_records(tmp_path, "run", size=11, steps=3)
    assert [one.rank for one in loaded] == list(range(11))
    assert loaded[2].losses == record(2, 11).losses
    assert torch.equal(loaded[2].parameters["weight"], torch.ones(2, 2))


@pytest.mark.parametrize(
    ("left", "size", "steps"),
    [
        ([record(0, 3), record(2, 3)], 3, 3),  # a rank is missing
        ([record(0, 1), record(0, 1)], 2, 3),  # two runs that did not know of each other
        ([record(0, 2), record(1, 2)], 2, 4),  # a step is missing
        ([], 1, 3),
    ],
)
def test_records_that_are_not_complete_are_refused(
    left: list[Record], size: int, steps: int, tmp_path: Path
) -> None:
    for one in left:
        one.save(tmp_path)
    with pytest.raises(RecordError, match="run: its records are not complete"):
        load_records(tmp_path, "run", size=size, steps=steps)
