"""Ranks that greet, and others that will not come: because they said so, or because they ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from torch._C._distributed_c10d import HashStore

from collectives.errors import CollectivesError, ContextError, ExchangeTimeout, PeerLost
from collectives.facts import Facts, Process
from collectives.hello import decline, greet

SIZES = (2, 3, 5)


def come(
    store: HashStore, rank: int, size: int, lost: Callable[[int], bool], timeout: float = 20.0
) -> CollectivesError | int:
    me = Process(f"host-{rank}", 100 + rank, f"token-{rank}")
    try:
        facts = Facts(rank, size)
        return greet(store, facts, timeout=timeout, label="g", process=me, lost=lost).generation
    except CollectivesError as error:
        return error


def all_but_the_last(
    store: HashStore, size: int, lost: Callable[[int], bool], timeout: float = 20.0
) -> list[CollectivesError | int]:
    found: list[CollectivesError | int] = []
    threads = [
        threading.Thread(target=lambda r=rank: found.append(come(store, r, size, lost, timeout)))
        for rank in range(size - 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_has_ended_is_not_waited_for(size: int) -> None:
    begun = time.monotonic()
    found = all_but_the_last(HashStore(), size, lambda rank: rank == size - 1)
    assert time.monotonic() - begun < 5
    assert len(found) == size - 1
    for error in found:
        assert isinstance(error, PeerLost)
        assert f"rank {size - 1} ended, or destroyed the process group, before" in str(error)


def test_a_rank_that_has_not_ended_is_waited_for() -> None:
    (error,) = all_but_the_last(HashStore(), 2, lambda rank: False, timeout=1.5)
    assert isinstance(error, ExchangeTimeout)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_came_and_ended_has_come(size: int) -> None:
    """It may have exchanged all that it had to, while this rank was stopped."""
    store = HashStore()
    last = threading.Thread(target=come, args=(store, size - 1, size, lambda rank: False))
    last.start()
    assert all_but_the_last(store, size, lambda rank: rank == size - 1) == [1] * (size - 1)
    last.join(10)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [PeerLost, ContextError])
def test_a_rank_that_says_why_it_will_not_come_is_quoted(
    size: int, kind: type[CollectivesError]
) -> None:
    store = HashStore()
    decline(store, Facts(size - 1, size), label="g", reason="it has no labels", kind=kind)
    for error in all_but_the_last(store, size, lambda rank: True):
        assert type(error) is kind
        assert f"rank {size - 1} (process " in str(error)
        assert "gave up: it has no labels" in str(error)
