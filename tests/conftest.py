"""What holds for every test: pytest's own process stays as it was."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from hypothesis import settings

# The machine is busy with ranks, so an example may take its time; and a run is like any other.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

pytest_plugins = [
    "collectives.testing.plugin",
    "pytester",
    "tests.support.cells",
    "tests.support.starts",
    "tests.support.worlds",
]

# torch's store asks for the name of every address that connects to it: a resolver that drops such
# a question would hold it for 5 s, beyond what tests of deadlines allow.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


os.environ["COLLECTIVES_FLIGHT_RECORD"] = "off"  # tests that fail on purpose leave no files


@pytest.fixture(scope="module", autouse=True)
def old_objects_rest() -> None:
    """Thousands of tests and their reports stay: every collection would look at all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def process_stays_clean() -> Iterator[None]:
    before = _environ()
    yield
    after = _environ()
    for name in after.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    assert after == before, "the test changed the environment of pytest's process"
    if dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("the test left a process group in pytest's process")


# Set by pytest, and by torch when torch.func is first used.
NOT_THE_TESTS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_THE_TESTS}
