"""Ranks that a process starts by itself, as in a notebook: their weights come back.

Each runs in a rank of the pool, which has imported everything: forks begin at once, and only what
is spawned imports Lightning anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from adapters.raw_ddp import RawDDPAdapter
from tests.support.launching import environment, run_all
from tests.support.nets import Moves, Net
from tests.support.recipe import Recipe, Weights, assert_trained, reference, weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")

FORKED, SPAWNED = "ddp_fork, ddp_notebook", "ddp_spawn"


def under_lightning(strategy: str) -> Weights:
    from tests.support.under_lightning import Trained, trainer_for

    module = Trained(Recipe())
    trainer_for(Recipe(), 2, strategy=strategy, plugins=None).fit(module)
    return weights_of(module.net)


def under_fabric(strategy: str) -> Weights:
    from tests.support.under_fabric import fabric_for, numbers

    runtime = fabric_for(Recipe(), 2, strategy, plugins=None)
    found = runtime.launch(partial(numbers, recipe=Recipe()))
    return {name: torch.tensor(weight, dtype=torch.float64) for name, weight in found.items()}


def assert_brings_weights_back(train: Callable[[str], Weights], strategy: str) -> None:
    assert_trained(train(strategy), reference(Recipe(), 2))
    assert not dist.is_initialized()


@pytest.mark.ranks(1, backend=None, fresh=True)
@pytest.mark.parametrize(
    "strategy", ["ddp_fork", pytest.param("ddp_notebook", marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize(
    "train",
    [
        pytest.param(under_lightning, marks=pytest.mark.cell(FORKED, "lightning")),
        pytest.param(under_fabric, marks=[pytest.mark.cell(FORKED, "fabric"), pytest.mark.matrix]),
    ],
)
def test_forked_ranks_train_and_the_weights_come_back(
    train: Callable[[str], Weights], strategy: str
) -> None:
    assert_brings_weights_back(train, strategy)


@pytest.mark.cell(FORKED, "lightning")
@pytest.mark.matrix
@pytest.mark.ranks(1, backend=None, fresh=True)
def test_a_module_goes_from_one_device_to_forked_ranks_and_back() -> None:
    from tests.support.under_lightning import Trained, trainer_for

    def from_here(moves: Moves) -> Net:
        net = Net(moves).double()
        net.load_state_dict(module.net.state_dict())
        return net

    module = Trained(Recipe())
    for size, options in ((1, {}), (2, {"strategy": "ddp_notebook", "plugins": None}), (1, {})):
        expected = reference(Recipe(net=from_here), size)
        trainer_for(Recipe(), size, **options).fit(module)
        assert_trained(weights_of(module.net), expected)


@pytest.mark.matrix
@pytest.mark.ranks(1, backend=None, timeout=120)
@pytest.mark.parametrize(
    "train",
    [
        pytest.param(under_lightning, marks=pytest.mark.cell(SPAWNED, "lightning")),
        pytest.param(under_fabric, marks=pytest.mark.cell(SPAWNED, "fabric")),
    ],
)
def test_spawned_ranks_train_and_the_weights_come_back(train: Callable[[str], Weights]) -> None:
    assert_brings_weights_back(train, "ddp_spawn")


def train_forked(rank: int, folder: Path) -> None:
    from tests.support.under_raw import train_with

    with RawDDPAdapter(rank=rank, size=2, timeout=20) as adapter:
        torch.save(train_with(adapter, Recipe(), 2), folder / f"{rank}.pt")


def assert_forked_by_hand_trains(folder: Path) -> None:
    start_processes(train_forked, (folder,), nprocs=2, start_method="fork")
    for rank in range(2):
        assert_trained(torch.load(folder / f"{rank}.pt"), reference(Recipe(), 2))


@pytest.mark.cell(FORKED, "raw")
@pytest.mark.matrix
@pytest.mark.ranks(1, backend=None, fresh=True)
def test_ranks_that_a_script_forks_train_as_one_process(tmp_path: Path) -> None:
    assert_forked_by_hand_trains(tmp_path)


# As a reader runs them: the first again after the others, in the kernel that they have left.
CELLS = (
    "from pathlib import Path\nfrom tests.matrix.test_forked import *",
    "assert_brings_weights_back(under_lightning, 'ddp_notebook')",
    "assert_brings_weights_back(under_fabric, 'ddp_notebook')",
    "assert_forked_by_hand_trains(Path.cwd())",
    "assert_brings_weights_back(under_lightning, 'auto')  # Lightning sees that it is a notebook",
)
EXECUTE = [sys.executable, "-c", "from nbclient.cli import main; main()"]


def notebook_of(cells: Iterable[str]) -> dict[str, object]:
    new = {"cell_type": "code", "metadata": dict[str, str](), "execution_count": None}
    return {
        "cells": [
            {**new, "id": f"cell-{number}", "source": cell, "outputs": []}
            for number, cell in enumerate(cells)
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@pytest.mark.matrix
@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="there is no Jupyter kernel here; `make matrix` installs one",
)
@pytest.mark.cell(FORKED, "lightning")
@pytest.mark.cell(FORKED, "fabric")
@pytest.mark.cell(FORKED, "raw")
def test_cells_of_a_notebook_start_ranks_from_a_real_kernel(tmp_path: Path) -> None:
    (tmp_path / "training.ipynb").write_text(json.dumps(notebook_of(CELLS)))
    command = [*EXECUTE, "--timeout=120", "--inplace", "training.ipynb"]
    run_all(tmp_path, [command], [environment(tmp_path, {"HOME": str(tmp_path)})])
    done = json.loads((tmp_path / "training.ipynb").read_text())["cells"]
    assert [cell["execution_count"] for cell in done] == [1, 2, 3, 4, 5]
