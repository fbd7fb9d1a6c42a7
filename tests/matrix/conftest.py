"""Fixtures of the runtime matrix: two hosts, and an Exchange whose code is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.netlab.hosts import Hosts, HostsError


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    """One rank, in pytest's own process, for code that is compiled."""
    alone = Exchange(Ring, RawDDPAdapter())
    alone.join(torch.zeros((), requires_grad=True))  # what a test before has left in the chain
    yield alone
    torch.compiler.reset()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts on one machine; skipped where it can have none."""
    try:
        made = Hosts(2)
    except HostsError as error:
        pytest.skip(f"no network namespaces here: {error}")
    with made:
        yield made
