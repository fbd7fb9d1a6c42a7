"""Rules of the design that no other tool checks: what runs without torch, and who speaks to it."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("collectives", "adapters")
FRAMEWORKS = ("lightning", "lightning_fabric", "pytorch_lightning")

PURE = (
    *("errors", "topology", "plan", "signature", "context", "explain", "launcher", "hello", "book"),
    *("facts", "header", "line", "edges", "settings", "strips", "windows"),
)

# The worker is a launcher: it makes the groups of test ranks. Requirements ask if torch has any.
SPEAKS_TO_TORCH_DISTRIBUTED = {
    "collectives/requirements.py",
    "collectives/runtime.py",
    "collectives/testing/worker.py",
    "adapters/raw_ddp.py",
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(p for p in parts if p != "__init__"))


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_topologies_plans_and_errors_run_where_torch_cannot_be_imported() -> None:
    program = """
import importlib, pathlib, sys, types
package = types.ModuleType("collectives")  # its own __init__ imports the engine
package.__path__ = ["collectives"]
sys.modules |= {"collectives": package, **dict.fromkeys(("torch", "numpy", "networkx"))}
for name in sys.argv[1:]:
    importlib.import_module(f"collectives.{name}")
ring = importlib.import_module("collectives.topology").Ring(4)
assert ring.right(3) == 0
"""
    result = python(program, *PURE)
    assert result.returncode == 0, result.stderr


def test_no_framework_is_imported_by_core_or_adapters() -> None:
    program = """
import sys, collectives, collectives.compat, collectives.testing
import adapters.fabric, adapters.lightning, adapters.raw_ddp
roots = {name.split(".")[0] for name in sys.modules}
assert not roots & set(sys.argv[1:]), roots & set(sys.argv[1:])
assert not roots & {"pytest", "cloudpickle"}, "collectives.testing needs the extra [testing]"
"""
    result = python(program, *FRAMEWORKS)
    assert result.returncode == 0, result.stderr


def test_only_transports_runtime_and_raw_adapter_speak_to_torch_distributed() -> None:
    speakers = {
        relative(path)
        for path in sources(*PACKAGES)
        if uses_torch_distributed(ast.parse(path.read_text()))
    }
    in_transport = {name for name in speakers if name.startswith("collectives/transport/")}
    assert speakers - in_transport <= SPEAKS_TO_TORCH_DISTRIBUTED
    assert speakers >= SPEAKS_TO_TORCH_DISTRIBUTED


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.distributed as dist", True),
        ("from torch import distributed", True),
        ("from torch.distributed import P2POp", True),
        ("from torch._C._distributed_c10d import FileStore", True),
        ("import torch\ndef f(): return torch.distributed.get_rank()", True),
        ("if TYPE_CHECKING:\n    from torch.distributed import ProcessGroup", False),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import torch.distributed", True),
        ("import torch\nx = torch.ones(1)", False),
    ],
)
def test_the_search_for_torch_distributed_sees_run_time_uses_only(
    source: str, *, expected: bool
) -> None:
    assert uses_torch_distributed(ast.parse(source)) is expected


def test_every_module_and_public_name_has_a_docstring() -> None:
    modules = [module_of(path) for path in sources(*PACKAGES)]
    assert [module.__name__ for module in modules if not module.__doc__] == []
    things = [(m, name, getattr(m, name)) for m in modules for name in public_names(m)]
    assert len(things) > 50
    silent = [
        f"{module.__name__}.{name}"
        for module, name, thing in things
        if (inspect.isclass(thing) or inspect.isroutine(thing)) and not inspect.getdoc(thing)
    ]
    assert silent == []


def test_no_public_signature_says_any() -> None:
    exported = list(exported_by_the_packages())
    assert len(exported) > 10
    loose = [
        f"{thing.__module__}.{thing.__qualname__}: {function.name}"
        for thing in exported
        for function in public_functions(definition_of(thing))
        if says_any(function)
    ]
    assert loose == []


def test_every_file_is_short_enough_to_be_one_noun() -> None:
    files = sources(*PACKAGES, "tests", "examples", "benchmarks")
    lengths = {relative(path): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines >= 300} == {}


def uses_torch_distributed(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return any(map(uses_torch_distributed, node.orelse))
    return names_torch_distributed(node) or any(
        map(uses_torch_distributed, ast.iter_child_nodes(node))
    )


def names_torch_distributed(node: ast.AST) -> bool:
    named: list[str] = []
    if isinstance(node, ast.Import):
        named = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        named = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Attribute):
        named = [ast.unparse(node)]
    return any(n.startswith(("torch.distributed", "torch._C._distributed_c10d")) for n in named)


def public_names(module: ModuleType) -> list[str]:
    """Return ``__all__``, or what an ``__init__`` re-exports as ``X as X``."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return [a.name for node in imports for a in node.names if a.asname == a.name]


def exported_by_the_packages() -> Iterator[type | FunctionType]:
    for path in [ROOT / "collectives" / "__init__.py", *sources("adapters")]:
        module = module_of(path)
        for name in public_names(module):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield thing


def definition_of(thing: type | FunctionType) -> ast.ClassDef | ast.FunctionDef:
    (definition,) = ast.parse(inspect.getsource(thing)).body
    assert isinstance(definition, ast.ClassDef | ast.FunctionDef)
    return definition


def public_functions(definition: ast.ClassDef | ast.FunctionDef) -> list[ast.FunctionDef]:
    if isinstance(definition, ast.FunctionDef):
        return [definition]
    methods = [node for node in definition.body if isinstance(node, ast.FunctionDef)]
    return [m for m in methods if not m.name.startswith("_") or m.name == "__init__"]


def says_any(function: ast.FunctionDef) -> bool:
    arguments = function.args
    everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    everything += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    annotations = [a.annotation for a in everything] + [function.returns]
    words = [node for a in annotations if a is not None for node in ast.walk(a)]
    return any(getattr(word, "id", getattr(word, "attr", "")) == "Any" for word in words)
