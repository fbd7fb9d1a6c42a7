"""The store never blocks anybody but the clerk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from collectives.guard.account import Account, Cause
from collectives.guard.board import Board
from collectives.guard.clerk import Clerk, ClerkTimeoutError


@pytest.fixture
def clerk() -> Iterator[Clerk]:
    clerk = Clerk()
    yield clerk
    clerk.close(1.0)
    assert not [t for t in threading.enumerate() if t.name.startswith("collectives-clerk")]


def test_results_and_errors_come_back(clerk: Clerk) -> None:
    assert clerk.call(lambda: 3, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        clerk.call(lambda: 1 // 0, 5.0)
    assert clerk.ask(lambda: 1 // 0, 5.0) is None


def test_calls_are_made_in_one_other_thread(clerk: Clerk) -> None:
    threads = {clerk.call(threading.get_ident, 5.0) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_a_frozen_store_costs_its_bound_once_and_then_nothing(clerk: Clerk) -> None:
    thawed = threading.Event()
    begun = time.monotonic()
    with pytest.raises(ClerkTimeoutError):
        clerk.call(thawed.wait, 0.1)
    assert time.monotonic() - begun < 2
    begun = time.monotonic()
    assert all(clerk.ask(lambda: 1, 60.0) is None for _ in range(100))
    assert time.monotonic() - begun < 5
    thawed.set()
    while clerk.ask(lambda: 1, 5.0) is None and time.monotonic() - begun < 20:
        time.sleep(0.01)
    assert clerk.call(lambda: 2, 5.0) == 2


def test_a_call_that_was_only_slow_is_waited_for(clerk: Clerk) -> None:
    assert clerk.ask(lambda: time.sleep(0.5), 0.1) is None
    assert clerk.call(lambda: 3, 20.0) == 3


def test_close_leaves_a_frozen_call_behind() -> None:
    clerk, thawed = Clerk(), threading.Event()
    assert clerk.ask(thawed.wait, 0.05) is None
    begun = time.monotonic()
    clerk.close(0.1)
    assert time.monotonic() - begun < 2
    thawed.set()


def test_the_board_keeps_the_first_cause_and_the_last_account() -> None:
    first, second = Cause("lost", 1, "rank 2 is gone"), Cause("timeout", 3, "nothing came")
    store = HashStore()
    board, other = Board(store, 1), Board(store, 3)
    assert board.cause() is None
    assert board.account(1) is None
    assert board.report(first) == first
    assert other.report(second) == first
    assert other.cause() == first
    assert board.unaware(5) == [0, 2, 4]
    assert Board(store, 2).cause() == first
    assert board.unaware(5) == [0, 4]
    board.publish(Account(1, count=4))
    board.publish(Account(1, count=5))
    assert other.account(1) == Account(1, count=5)


def test_what_somebody_else_wrote_on_the_board_is_not_believed() -> None:
    store = HashStore()
    board = Board(store, 0)
    store.set("account/1", Account(2).dumps())
    store.set("account/2", "\x80\x04K\x01.")
    store.set("cause", "[]")
    assert board.account(1) is None
    assert board.account(2) is None
    assert board.cause() is None


def test_ranks_that_did_not_call_for_the_next_generation_are_named() -> None:
    store = HashStore()
    for rank in (0, 2):
        Board(store, rank).call_for_renewal()
    assert Board(store, 0).missing(4) == [1, 3]
