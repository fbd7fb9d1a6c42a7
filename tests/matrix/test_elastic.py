"""A rank is killed, torchrun starts all again, and the weights are those of an undisturbed run."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.cells import runtimes
from tests.support.launching import ROOT, environment, run_all

FEATURE = "torchrun --max-restarts: a rank is killed, all go on"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
END = re.compile(r"^step 8: .*$", re.MULTILINE)


def train(folder: Path, *options: str) -> str:
    folder.mkdir()
    script = ["-m", "examples.elastic", "--checkpoint", str(folder / "last.pt"), *options]
    return run_all(folder, [[*TORCHRUN, *script]], [environment(folder)])


@pytest.mark.matrix
@pytest.mark.cell(FEATURE, "raw")
def test_the_example_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "undisturbed")
    killed = train(tmp_path / "killed", "--kill-at", "5")
    assert killed.count("starts at step 0") == killed.count("starts at step 5") == 2
    assert END.findall(killed) == END.findall(undisturbed) != []


@pytest.mark.matrix
@runtimes(FEATURE, "lightning", "fabric")
def test_where_somebody_else_makes_the_group_torch_must_not_share_its_store(
    runtime: str, tmp_path: Path
) -> None:
    """Without the variable gloo finds the addresses of the dead: pytorch/pytorch#135712."""
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    script = str(ROOT / "tests" / "support" / "restarted.py")
    ends: list[list[torch.Tensor]] = []
    for kill in ("0", "1"):
        folder = tmp_path / kill
        command = [*TORCHRUN, script, runtime, str(folder), kill]
        output = run_all(tmp_path, [command], [environment(tmp_path, variables)])
        assert ("exitcode: -9" in output) == (kill == "1")
        assert "may start this job anew" not in output
        ends.append(torch.load(folder / "weights.pt"))
    for killed, undisturbed in zip(*ends, strict=True):
        assert torch.equal(killed, undisturbed)


@pytest.mark.ranks(2)
@pytest.mark.cell(FEATURE, "raw")
@pytest.mark.parametrize("restarts", ["0", "3"])
def test_a_group_that_a_restart_would_break_is_a_warning_on_rank_0(
    rank: int, restarts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Exchange(Ring, RawDDPAdapter()).shift(torch.ones(1))
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == (rank == 0 and restarts != "0")
    assert all("set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun" in text for text in texts)
