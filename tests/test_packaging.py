"""The wheel: what is in it, and that it lives beside AdapterHub's ``adapters``.

That distribution ships ``adapters/__init__.py``; ours has no such file (PEP 420), so the two share
the folder in site-packages, whichever is installed or removed first.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ADAPTER_HUB = {
    "adapters/__init__.py": '"""Stands in for AdapterHub."""\nfrom .methods import LORA\n',
    "adapters/methods.py": 'LORA = "lora"\n',
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "adapters"
        version = "1.3.0"
        [tool.hatch.build.targets.wheel]
        packages = ["adapters"]
        """,
}

USE_THEIRS = """
import adapters
assert adapters.LORA == "lora"
"""

USE_OURS = """
import pathlib, sys, torch, collectives
from adapters.fabric import FabricAdapter
from adapters.lightning import LightningAdapter
from adapters.raw_ddp import RawDDPAdapter
exchange = collectives.Exchange(collectives.Ring, RawDDPAdapter())
assert exchange.shift(torch.ones(2)).tolist() == [1, 1]
for module in ("collectives", "adapters.raw_ddp"):
    assert pathlib.Path(sys.modules[module].__file__).is_relative_to(sys.prefix), module
"""


class Environment:
    """A virtual environment that has the dependencies of this one, but not this project."""

    def __init__(self, folder: Path) -> None:
        call(sys.executable, "-m", "venv", "--without-pip", str(folder))
        self.python = str(folder / "bin" / "python")
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        purelib = Path(call(self.python, "-c", where).strip())
        # A folder named by a .pth file is searched, but .pth files in it are not read: an editable
        # install of this project in there stays out.
        (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def pip(self, *arguments: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check")
        call(*pip, *arguments)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))

    def run(self, program: str) -> None:
        call(self.python, "-I", "-c", program)


def call(*command: str, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout


def build(project: Path, folder: Path) -> Path:
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=project)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("adapterhub")
    (project / "adapters").mkdir()
    for name, text in ADAPTER_HUB.items():
        (project / name).write_text("\n".join(line.strip() for line in text.splitlines()))
    return build(project, tmp_path_factory.mktemp("theirs"))


def test_the_wheel_holds_the_two_typed_packages_and_nothing_else(ours: Path) -> None:
    names = zipfile.ZipFile(ours).namelist()
    code = [name for name in names if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in code} == {"collectives", "adapters"}
    assert {"collectives/py.typed", "adapters/py.typed"} <= set(code)
    assert "adapters/__init__.py" not in code
    in_tree = {
        p.relative_to(ROOT).as_posix()
        for f in ("collectives", "adapters")
        for p in (ROOT / f).rglob("*.py")
    }
    assert {name for name in code if name.endswith(".py")} == in_tree


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("removed", ["ours", "theirs"])
def test_it_lives_beside_adapterhub_in_either_order(
    ours: Path, theirs: Path, first: str, removed: str, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "venv")
    order: Sequence[Path] = (ours, theirs) if first == "ours" else (theirs, ours)
    for wheel in order:
        environment.install(wheel)
    environment.run(USE_THEIRS + USE_OURS)
    if removed == "ours":
        environment.pip("uninstall", "--yes", "torch-collectives")
        environment.run(USE_THEIRS + gone("collectives", "adapters.raw_ddp"))
    else:
        environment.pip("uninstall", "--yes", "adapters")
        environment.run(USE_OURS + gone("adapters.methods"))


def gone(*modules: str) -> str:
    return f"""
import importlib.util
for name in {modules!r}:
    assert importlib.util.find_spec(name) is None, name
"""
