"""Tests that need a GPU are skipped where there is none."""

from __future__ import annotations

import pytest

from tests.support.accelerators import has_gpu


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not has_gpu():
        pytest.skip("needs an NVIDIA GPU, with torch for CUDA and NCCL")
