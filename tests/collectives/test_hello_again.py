"""Ranks that greet over a store that other processes have used before: those of torchrun's agent.

Dead processes are those whose ``greet`` has returned: they answer nobody any more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore, Store

from collectives import book
from collectives.errors import CollectivesError, ContextError, ExchangeTimeout
from collectives.facts import Facts, Process
from collectives.hello import greet

Outcome = str | CollectivesError


def meet(
    store: Store,
    ranks: Sequence[Facts],
    attempt: str,
    *,
    timeout: float = 10.0,
    delays: Sequence[float] = (),
) -> list[Outcome]:
    """Let all greet, in processes of their own; give the run of each, or its error.

    Args:
        store: Of all attempts.
        ranks: What each believes.
        attempt: Tells its processes from those of others.
        timeout: Of each.
        delays: Seconds after which each comes.
    """

    def one(number: int) -> Outcome:
        if delays:
            time.sleep(delays[number])
        me = Process(f"host-{attempt}", 100 + number, f"{attempt}{number}")
        try:
            facts = ranks[number]
            return greet(store, facts, timeout=timeout, label="g", process=me, lasting=True).run
        except CollectivesError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(one, range(len(ranks))))


def everybody(size: int) -> list[Facts]:
    return [Facts(rank, size) for rank in range(size)]


def check_met(outcomes: Sequence[Outcome]) -> str:
    """Return the name of the meeting, which must be one for all."""
    (name,) = set(outcomes)
    assert isinstance(name, str), outcomes
    return name


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_attempt_meets_by_itself_and_under_a_name_of_its_own(size: int) -> None:
    store = HashStore()
    names = [check_met(meet(store, everybody(size), attempt)) for attempt in "abcd"]
    assert len(set(names)) == 4


def test_processes_that_greet_again_meet_under_another_name() -> None:
    store = HashStore()
    first, second = (check_met(meet(store, everybody(3), "a")) for _ in range(2))
    assert first != second


def test_an_attempt_may_have_another_size_than_the_one_before() -> None:
    store = HashStore()
    for attempt, size in (("a", 4), ("b", 2), ("c", 3)):
        check_met(meet(store, everybody(size), attempt))


def test_ranks_that_came_alone_and_died_are_no_obstacle() -> None:
    store = HashStore()
    for outcome in meet(store, everybody(3)[1:], "a", timeout=1.0):
        assert isinstance(outcome, ExchangeTimeout)
        assert "rank 0 did not come" in str(outcome), "those that came are known to each other"
    check_met(meet(store, everybody(3), "b"))


def test_what_an_attempt_failed_for_is_not_held_against_the_next() -> None:
    store = HashStore()
    for outcome in meet(store, [Facts(0, 2, job="A"), Facts(1, 2, job="B")], "a"):
        assert isinstance(outcome, ContextError)
        assert "two jobs meet at one address" in str(outcome)
    check_met(meet(store, everybody(2), "b"))


@pytest.mark.parametrize("late", [0, 3])
def test_two_living_processes_of_one_rank_are_named_on_all(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes last, as long as those stay that know it already."""
    monkeypatch.setattr(book, "_PARTING", 3.0)  # the machine may be a second late as well
    store = HashStore()
    check_met(meet(store, everybody(3), "a"))
    ranks = [Facts(0, 3), Facts(1, 3), Facts(1, 3), Facts(2, 3)]
    delays = [0.3 if number == late else 0.0 for number in range(4)]
    for outcome in meet(store, ranks, "b", delays=delays):
        assert isinstance(outcome, ContextError)
        assert "two processes claim rank 1: process 10" in str(outcome)
        assert "host-a" not in str(outcome)


@pytest.mark.parametrize("seed", range(10))
def test_whoever_comes_when_all_meet(seed: int) -> None:
    choose = random.Random(seed)
    store = HashStore()
    for attempt in "abc":
        size = choose.randint(2, 8)
        delays = [choose.choice((0.0, 0.001, 0.01, 0.05)) for _ in range(size)]
        check_met(meet(store, everybody(size), attempt, delays=delays))


def test_however_the_ranks_come_the_book_stays_short() -> None:
    """Each writes that it came, and once more when all are there."""
    size, store = 48, HashStore()
    for attempt in "ab":
        before = store.add("g/1/entries", 0)
        check_met(meet(store, everybody(size), attempt, delays=[r / 100 for r in range(size)]))
        assert store.add("g/1/entries", 0) - before <= 3 * size
