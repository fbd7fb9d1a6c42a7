"""Hosts for the tests of this folder, where the machine can make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from collectives.testing.rank_process import start_fork_server

from .hosts import Hosts, HostsError


@pytest.fixture
def make_hosts(pytestconfig: pytest.Config) -> Iterator[Callable[[int], Hosts]]:
    """Return a function for hosts, which are gone after the test."""
    with ExitStack() as stack:

        def make(count: int) -> Hosts:
            try:
                hosts = stack.enter_context(Hosts(count))
            except HostsError as error:
                pytest.skip(f"no network namespaces here: {error}")
            start_fork_server(pytestconfig.getini("ranks_preload"))  # unless there is one
            return hosts

        yield make
