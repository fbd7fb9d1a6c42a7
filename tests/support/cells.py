"""Marks of the runtime matrix: which cells of the README's table a test shows."""

from __future__ import annotations

import pytest

__all__ = ["RUNTIMES", "no_launcher", "runtimes"]

RUNTIMES = ("lightning", "fabric", "raw")


def runtimes(feature: str, *names: str) -> pytest.MarkDecorator:
    """Run a test once under each runtime, a cell each; it gets the name as ``runtime``."""
    cases = [pytest.param(n, marks=pytest.mark.cell(feature, n)) for n in names or RUNTIMES]
    return pytest.mark.parametrize("runtime", cases)


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the job that started the tests."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
