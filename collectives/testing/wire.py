"""What travels between the pool and its ranks, and how it is pickled."""

from __future__ import annotations

import contextlib
import io
import marshal
import pickle
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import cloudpickle

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "RANK",
    "Ending",
    "Job",
    "OnRank",
    "by_value",
    "dumps",
    "dumps_job",
    "loads",
    "warning_filters",
]

loads = pickle.loads

# action, message, category, module, line number: the arguments of warnings.filterwarnings
WarningFilter = tuple[str, str, type[Warning], str, int]


class OnRank(Enum):
    """Stands in for an argument that exists only on a rank."""

    NUMBER = "rank"
    MONKEYPATCH = "monkeypatch"


RANK: Final = OnRank.NUMBER
"""Given as an argument to a program: each rank gets its own number in its place."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program, with all of the pool's process that it depends on."""

    program: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    size: int
    backend: str | None
    rendezvous: str
    group_timeout: float
    environ: Mapping[str, str]
    cwd: str
    warnings: tuple[WarningFilter, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended on one rank.

    Args:
        kind: A rank itself reports the first three, the pool finds the others.
        text: Traceback, reason of a skip, way of dying, or where a rank is stuck.
        value: What the program returned, pickled.
        at: On the monotonic clock, which all processes of a host share.
    """

    kind: Literal["value", "raised", "skipped", "died", "stuck"]
    text: str
    value: bytes
    at: float


def dumps(value: object) -> bytes:
    """Pickle ``value``, closures and lambdas included."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def dumps_job(job: Job) -> bytes:
    """Pickle ``job``.

    Raises:
        TypeError: A part of it cannot be pickled; the text names the part.
    """
    __tracebackhide__ = True
    try:
        return dumps(job)
    except Exception as error:
        positional = {f"argument {i}": value for i, value in enumerate(job.args)}
        named = {f"argument {name!r}": value for name, value in job.kwargs.items()}
        for name, value in {"the program": job.program, **positional, **named}.items():
            if not _can_be_pickled(value):
                message = f"{name} ({type(value).__name__}) cannot be sent to the ranks: {error}"
                raise TypeError(message) from None
        raise


@contextlib.contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """Send functions and classes of ``module`` as code, not as names to import.

    A rank cannot always import a test module, and an import there would miss the assertions
    as pytest rewrote them.
    """
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def warning_filters() -> tuple[WarningFilter, ...]:
    """Return the filters in force, as arguments of ``warnings.filterwarnings``."""
    return tuple(
        (action, _pattern(message), one, _pattern(module), line)
        for action, message, category, module, line in warnings.filters
        for one in (category if isinstance(category, tuple) else (category,))
    )


def _pattern(compiled: object) -> str:
    return str(getattr(compiled, "pattern", compiled) or "")


def _can_be_pickled(value: object) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 - whatever a value's __reduce__ raises
        return False
    return True


def _reduce_code(code: CodeType) -> tuple[Callable[[bytes], object], tuple[bytes]]:
    return marshal.loads, (marshal.dumps(code),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle is untyped
    # cloudpickle sends every code object under the file name "<dynamic-code>", which costs
    # tracebacks their source lines and coverage the test files. Both ends are the same
    # interpreter, so marshal will do, and it keeps the name.
    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap(
        {CodeType: _reduce_code}, dict(cloudpickle.Pickler.dispatch_table)
    )
