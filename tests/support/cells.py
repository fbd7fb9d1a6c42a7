"""Marks of the runtime matrix: which cells of the README's table a test shows."""

from __future__ import annotations

from collections.abc import Collection

import pytest

__all__ = ["RUNTIMES", "no_launcher", "runtimes"]

RUNTIMES = ("lightning", "fabric", "raw")


def runtimes(feature: str, *names: str, slow: Collection[str] = ()) -> pytest.MarkDecorator:
    """Run a test once under each runtime, a cell each; it gets the name as ``runtime``.

    Args:
        feature: Row of the table.
        names: Runtimes; none: all.
        slow: Runtimes under which only ``make matrix`` runs it: what every day needs to know is
            known from the others.
    """
    cases = []
    for name in names or RUNTIMES:
        marks = [pytest.mark.cell(feature, name), *[pytest.mark.matrix] * (name in slow)]
        cases.append(pytest.param(name, marks=marks))
    return pytest.mark.parametrize("runtime", cases)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the job that started the tests."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
