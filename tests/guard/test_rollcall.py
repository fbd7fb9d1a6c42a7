"""Ranks meet before the next generation: who is late is waited for, who is gone is not."""

from __future__ import annotations

import threading
import time

import pytest
from torch._C._distributed_c10d import HashStore

from collectives.guard.account import Account, Cause
from collectives.guard.board import Board
from collectives.guard.rollcall import Absent, call_roll


def call(
    store: HashStore, cause: Cause | None = None, seconds: float = 0.3
) -> tuple[Absent, float]:
    """Call the roll of three as rank 0; return who is absent, and the seconds that it took."""
    begun = time.monotonic()
    Board(store, 0).call_for_renewal()
    absent = call_roll(Board(store, 0), 3, cause, seconds)
    return absent, time.monotonic() - begun


def test_a_rank_that_is_late_is_waited_for() -> None:
    store = HashStore()
    Board(store, 1).call_for_renewal()
    timer = threading.Timer(0.3, Board(store, 2).call_for_renewal)
    timer.start()
    absent, took = call(store, seconds=20.0)
    assert absent == Absent([])
    assert took >= 0.3
    timer.join()


def test_ranks_that_do_not_come_in_time_are_named() -> None:
    store = HashStore()
    Board(store, 1).call_for_renewal()
    assert call(store)[0] == Absent([2])


def test_a_rank_that_has_said_good_bye_is_not_waited_for() -> None:
    store = HashStore()
    Board(store, 2).publish(Account(2, count=5, left="ended after 5 exchanges"))
    absent, took = call(store, seconds=20.0)
    assert absent == Absent([1, 2], "rank 2 ended after 5 exchanges")
    assert took < 5.0


def test_a_rank_that_said_good_bye_to_come_here_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It calls for renewal first: who did not see that yet must not take it for gone."""
    store, missing = HashStore(), Board.missing
    Board(store, 1).call_for_renewal()

    def just_before(self: Board, size: int) -> list[int]:
        found = missing(self, size)
        Board(store, 2).call_for_renewal()
        Board(store, 2).publish(Account(2, count=5, left="called renew() after 5 exchanges"))
        return found

    monkeypatch.setattr(Board, "missing", just_before)
    assert call(store, seconds=20.0)[0] == Absent([])


@pytest.mark.parametrize("comes", [True, False])
def test_a_rank_whose_connection_was_closed_may_come_all_the_same(
    comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectives.guard.rollcall._RETURN", 0.5)
    store, text = HashStore(), "the connection of rank 1 to rank 2 was closed"
    Board(store, 1).call_for_renewal()
    timer = threading.Timer(0.2, Board(store, 2).call_for_renewal)
    if comes:
        timer.start()
    absent, took = call(store, Cause("lost", 1, text, 2), seconds=20.0)
    assert absent == (Absent([]) if comes else Absent([2], f"rank 2 is lost: {text}"))
    assert took < 5.0
    if comes:
        timer.join()
