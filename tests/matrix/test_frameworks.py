"""Frameworks that start the processes and make the process group by themselves.

Ray Train, Accelerate and DeepSpeed are installed by ``make matrix`` only.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric

from tests.support import attached
from tests.support.cells import runtimes
from tests.support.launching import ROOT, check_ring, environment, run_all
from tests.support.saved import SavedModule, quiet_trainer

SUPPORT = ROOT / "tests" / "support"
DEEPSPEED = "DeepSpeed, ZeRO stage 1, on the CPU"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not installed here; `make matrix` installs it"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


def ray(folder: Path, mode: str) -> None:
    variables = {
        "HOME": str(folder),  # Ray writes there
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    }
    # Ray puts sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:
        command = [sys.executable, str(SUPPORT / "under_ray.py"), mode, str(folder), short]
        run_all(folder, [command], [environment(folder, variables)])


@pytest.mark.matrix
@needs("ray")
@pytest.mark.cell("Ray Train", "raw")
def test_an_exchange_in_a_worker_of_ray_uses_rays_group_and_leaves_it_alone(tmp_path: Path) -> None:
    ray(tmp_path, "raw")
    for part in ("attached", "entered", "."):
        check_ring(tmp_path / part)


@pytest.mark.matrix
@needs("ray")
@pytest.mark.cell("Ray Train", "lightning")
def test_a_trainer_in_workers_of_ray_exchanges_over_rays_group_if_it_is_told_of_it(
    tmp_path: Path,
) -> None:
    ray(tmp_path, "lightning")
    check_ring(tmp_path)
    texts = [path.read_text() for path in tmp_path.glob("refused-*")]
    assert len(texts) == 2
    disagree = "the Trainer and torch.distributed disagree: the Trainer says rank 0 of 1"
    assert all(disagree in text for text in texts)


@pytest.mark.matrix
@needs("ray")
@pytest.mark.cell("Ray Train", "fabric")
def test_a_fabric_in_workers_of_ray_exchanges_over_rays_group(tmp_path: Path) -> None:
    ray(tmp_path, "fabric")
    check_ring(tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(
            "accelerate", marks=[needs("accelerate"), pytest.mark.cell("Accelerate", "raw")]
        ),
        pytest.param(
            "deepspeed",
            marks=[needs("deepspeed"), pytest.mark.cell(DEEPSPEED, "raw")],
        ),
    ],
)
def test_a_loop_that_exchanges_trains_as_one_process_would(mode: str, tmp_path: Path) -> None:
    command = [*TORCHRUN, str(SUPPORT / "attached.py"), mode, str(tmp_path)]
    run_all(tmp_path, [command], [environment(tmp_path, {"DS_ACCELERATOR": "cpu"})])
    check_ring(tmp_path)
    for rank in range(2):
        trained = torch.load(tmp_path / f"{rank}.pt")
        for found, expected in zip(trained, attached.reference(2), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.matrix
@needs("deepspeed")
@pytest.mark.filterwarnings("ignore")
@runtimes(DEEPSPEED, "lightning", "fabric")
def test_lightnings_deepspeed_strategy_refuses_the_cpu(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "DS_ACCELERATOR": "cpu"})  # both add to it

    def start() -> None:
        if runtime == "fabric":
            Fabric(accelerator="cpu", devices=1, strategy="deepspeed").launch()
        else:
            quiet_trainer(1, "deepspeed").fit(SavedModule())

    with pytest.raises(RuntimeError, match="The DeepSpeed strategy is only supported on CUDA GPUs"):
        start()
