"""torch, Lightning and what is beside them; memory, files and devices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives.doctor.findings import without_echoes
from collectives.doctor.logs import explain
from collectives.doctor.snapshot import Torch
from collectives.errors import ArgumentError
from collectives.requirements import what_is_missing
from collectives.settings import SETTINGS, check_settings
from tests.support.snapshots import MET, TORCHRUN, found, one

ROOT = Path(__file__).parents[2]
CUDA = Torch("2.13.0+cu128", ("gloo", "nccl"), "12.8", "cuda", ("H200", "H200"))
PACKAGES = {"torch": "2.13.0", "torch-collectives": "0.1.0"}


def test_torch_without_gloo_is_a_problem() -> None:
    assert "without gloo (it has nccl)" in one(torch=Torch("2.13.0", ("nccl",))).title
    assert found(torch=Torch("2.13.0", ("mpi",))) == []


@pytest.mark.parametrize(
    ("environ", "torch", "severity", "title"),
    [
        ({}, Torch("2.13.0+cpu"), "problem", "is built for the CPU"),
        (
            {"CUDA_VISIBLE_DEVICES": ""},
            Torch("2.13.0+cu128", cuda="12.8"),
            "warning",
            "hides all 8",
        ),
        ({}, Torch("2.13.0+cu128", cuda="12.8"), "problem", "cannot use them"),
    ],
)
def test_gpus_that_torch_does_not_use_are_told_with_the_reason(
    environ: dict[str, str], torch: Torch, severity: str, title: str
) -> None:
    finding = one(environ, torch=torch, gpus=("H200",) * 8)
    assert finding.severity == severity
    assert title in finding.title


def test_nccl_without_a_gpu_is_warned_of() -> None:
    assert "NCCL_DEBUG is set, but this process has no GPU" in one({"NCCL_DEBUG": "INFO"}).title
    assert found({"NCCL_DEBUG": "INFO"}, torch=CUDA) == []


def test_adapters_of_another_package_are_told_from_none_at_all() -> None:
    hub = one(adapters="another package is found first", packages={**PACKAGES, "adapters": "1.3.0"})
    assert "AdapterHub's adapters 1.3.0" in hub.detail
    assert "wheel" in hub.remedy
    assert "sys.path" in one(adapters="no package of that name is found").remedy


def test_the_other_distribution_collectives_is_a_problem() -> None:
    assert "pip uninstall collectives" in one(packages={**PACKAGES, "collectives": "0.0.1"}).remedy


def test_an_old_lightning_and_two_different_ones_are_warned_of() -> None:
    assert "lightning 2.1.4 is older" in one(packages={**PACKAGES, "lightning": "2.1.4"}).title
    two = {"lightning": "2.6.6", "pytorch-lightning": "2.5.0"}
    assert "are both installed" in one(packages={**PACKAGES, **two}).title
    same = dict.fromkeys(two, "2.6.6")
    assert found(packages={**PACKAGES, **same}) == []


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"shared_memory": (2**26, 2**26)}, "/dev/shm has 64 MiB free of 64 MiB"),
        ({"shared_memory": (2**20, 2**33)}, "/dev/shm has 1 MiB free of 8,192 MiB"),
        ({"open_files": 256}, "this process may have 256 open files"),
        (
            {"infiniband": True, "locked_memory": 2**16, "torch": CUDA},
            "this host has InfiniBand, but only 0 MiB of memory may be locked",
        ),
    ],
)
def test_what_a_container_has_too_little_of_is_warned_of(
    changes: dict[str, Any], title: str
) -> None:
    finding = one(**changes)
    assert (finding.severity, finding.title) == ("warning", title)


def test_hosts_without_limits_are_right() -> None:
    assert found(shared_memory=None, open_files=None, locked_memory=None, infiniband=True) == []


def test_a_local_rank_beyond_the_devices_is_a_problem() -> None:
    environ = {**TORCHRUN, "RANK": "1", "LOCAL_RANK": "1"}
    assert found(environ, **MET, torch=CUDA) == []
    environ = {
        **environ,
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "RANK": "2",
        "LOCAL_RANK": "2",
    }
    assert "local rank 2 has no device" in one(environ, **MET, torch=CUDA).title


def test_a_folder_in_which_ranks_cannot_meet_is_a_problem() -> None:
    assert (
        "TMPDIR"
        in one(folder="expected /tmp/x to be a folder that only this user can enter").remedy
    )


def test_a_name_that_is_almost_one_of_this_library_is_warned_of_with_the_right_ones() -> None:
    finding = one({"COLLECTIVES_STAL": "1", "COLLECTIVES_STALL": "1"})
    assert (finding.severity, finding.title) == (
        "warning",
        "COLLECTIVES_STAL is no variable of this library",
    )
    assert "COLLECTIVES_SIGNALS, COLLECTIVES_STALL" in finding.remedy


def test_a_setting_that_every_exchange_refuses_is_a_problem_and_its_error_an_echo() -> None:
    with pytest.raises(ArgumentError) as caught:
        check_settings({"COLLECTIVES_STALL": "soon"})
    finding = one(settings=(str(caught.value),))
    assert (finding.severity, finding.remedy) == ("problem", "correct it or leave it out")
    assert finding.title.startswith("COLLECTIVES_STALL: expected a number of seconds above 0")
    assert finding.title.endswith("got 'soon'")
    echo = explain("the ranks cannot exchange", f"ArgumentError: {caught.value}")
    assert without_echoes([finding], [echo]) == [finding]


def test_every_variable_that_the_sources_read_is_known() -> None:
    sources = [*(ROOT / "collectives").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    read = {
        name for path in sources for name in re.findall(r"COLLECTIVES_[A-Z_]+\b", path.read_text())
    }
    assert read - {"COLLECTIVES_"} == SETTINGS.keys()


@pytest.mark.parametrize(
    ("version", "distributed", "missing"),
    [
        ("2.13.0+cpu", True, ""),
        ("2.4.0", True, ""),
        ("2.3.1+cu121", True, "needs torch 2.4 or newer, got 2.3.1"),
        ("1.13.1", True, "needs torch 2.4 or newer"),
        ("2.13.0", False, "USE_DISTRIBUTED=0"),
    ],
)
def test_a_torch_that_is_not_enough_is_refused_before_anything_is_imported(
    version: str, missing: str, *, distributed: bool
) -> None:
    said = what_is_missing(version, distributed=distributed)
    assert (missing in said) if missing else said == ""


@pytest.mark.parametrize(
    ("version", "available", "said"),
    [
        ("1.13.1", True, "needs torch 2.4 or newer, got 1.13.1"),
        ("2.13.0", False, "USE_DISTRIBUTED=0"),
    ],
)
def test_the_import_says_what_is_missing_in_torch(
    version: str, said: str, tmp_path: Path, *, available: bool
) -> None:
    (tmp_path / "torch").mkdir()
    stub = f"from . import distributed\n__version__ = {version!r}\n"
    (tmp_path / "torch" / "__init__.py").write_text(stub)
    (tmp_path / "torch" / "distributed.py").write_text(f"def is_available(): return {available}")
    done = subprocess.run(
        [sys.executable, "-c", "import collectives"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: torch-collectives needs")
    assert said in done.stderr
