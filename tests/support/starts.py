"""Starts of a job that go wrong: what launchers set, and addresses for it.

Fixtures: ``port`` and ``agent``.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from adapters.raw_ddp import RawDDPAdapter
from collectives.errors import ContextError

__all__ = ["SLACK", "agent", "fails_within", "join", "launched", "port"]

SLACK = 4.0  # seconds after a timeout in which the error must have come


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given, and that a rank can listen at."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def agent() -> Iterator[int]:
    """The port of a store that outlives the ranks, as torchrun's agent has one."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def launched(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, port: int, **variables: object
) -> None:
    """Set what torchrun would."""
    environ = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**environ, **variables}.items():
        monkeypatch.setenv(name, str(value))


@contextmanager
def fails_within(seconds: float, pattern: str) -> Iterator[None]:
    """Expect a ContextError in time, and no group after it."""
    begun = time.monotonic()
    with pytest.raises(ContextError, match=pattern):
        yield
    assert time.monotonic() - begun < seconds
    assert not dist.is_initialized()


def join(timeout: float) -> None:
    """Join the job, and find all ranks there."""
    with RawDDPAdapter(device="cpu", timeout=timeout) as adapter:
        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == adapter.context().size
