"""A group belongs to one thread of each rank."""

from __future__ import annotations

import threading

import pytest

from collectives.errors import ExchangeError
from tests.guard.test_on_ranks import one, ring


@pytest.mark.ranks(1, 2, 3, 5)
def test_a_second_thread_is_refused_and_the_first_goes_on(rank: int, world_size: int) -> None:
    exchange, refused = ring(), []
    exchange.shift(one(rank))

    def second() -> None:
        try:
            exchange.shift(one(rank))
        except ExchangeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second, name="loader")
    thread.start()
    thread.join()
    assert "exchange in thread 'loader': this group belongs to thread 'MainThread'" in refused[0]
    assert exchange.shift(one(rank)).item() == (rank - 1) % world_size


@pytest.mark.ranks(1, 2, 3, 5)
def test_a_second_thread_must_not_wait_for_what_the_first_has_started(
    rank: int, world_size: int
) -> None:
    exchange, refused = ring(), []
    pending = exchange.start_shift(one(rank))

    def second() -> None:
        try:
            pending.wait()
        except ExchangeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=second, name="loader")
    thread.start()
    thread.join()
    assert "in thread 'loader': this group belongs to thread 'MainThread'" in refused[0]
    assert pending.wait().item() == (rank - 1) % world_size


@pytest.mark.ranks(2)
def test_a_thread_takes_over_from_one_that_has_ended(rank: int) -> None:
    exchange, arrived = ring(), []
    for _ in range(2):
        thread = threading.Thread(target=lambda: arrived.append(exchange.shift(one(rank)).item()))
        thread.start()
        thread.join()
    assert arrived == [1 - rank] * 2
