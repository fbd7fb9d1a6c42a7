"""Ranks that wait for each other in two process groups: proven where it is, never where it is not.

The faults "swapped order of two groups" in tests/faults play it on processes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ExchangeMismatch, ExchangeTimeout
from collectives.guard.account import Account, Elsewhere, read_account
from collectives.guard.judge import crossed, finished, judge
from tests.guard.test_judge import account, entry

TOLD = "wait for each other in two process groups"

# Rank 1 waits in exchange 5 here, and rank 2, which has not come to it, in 3 of the other group.
MINE = account(1, entry(1, 4, done=True), entry(1, 5))
AWAY = Elsewhere("other", 2, entry(2, 3, name="v"), bound=True)
THEIRS = replace(account(2, entry(2, 4, done=True), waits=False), elsewhere=AWAY)
THERE = account(1, entry(1, 2, name="v", done=True), waits=False)


def test_each_of_two_ranks_proves_it_and_tells_the_ranks_of_both_groups() -> None:
    found = crossed(MINE, THEIRS, THERE)
    assert found is not None
    here, there = (f"{cause.kind}: {cause.text}" for cause in found)
    assert here.startswith(f"mismatch: the ranks {TOLD}\n    rank 1 waits in exchange #5 exchange(")
    assert "rank 2 waits in another group, in exchange #3 exchange(" in here
    assert there.startswith(f"mismatch: the ranks {TOLD}\n    rank 2 waits in exchange #3")
    assert "rank 1 waits in another group, in exchange #5" in there


def test_ranks_have_other_numbers_in_the_other_group() -> None:
    away = Elsewhere("other", 0, entry(0, 3, name="v"), bound=True)
    found = crossed(MINE, replace(THEIRS, elsewhere=away), account(3, waits=False))
    assert found is not None
    assert "rank 2 waits in another group as rank 0, in exchange #3" in found[0].text
    assert "rank 3 waits in another group as rank 1, in exchange #5" in found[1].text


NO_PROOF = {
    "the peer waits nowhere else": (MINE, replace(THEIRS, elsewhere=None), THERE),
    "another thread of the peer": (
        MINE,
        replace(THEIRS, elsewhere=replace(AWAY, bound=False)),
        THERE,
    ),
    "the peer has done its part here": (
        MINE,
        replace(account(2, entry(2, 5), waits=False), elsewhere=AWAY),
        THERE,
    ),
    "this rank has done its part there": (
        MINE,
        THEIRS,
        account(1, entry(1, 3, name="v"), waits=False),
    ),
    "the peer waits for a third rank there": (
        MINE,
        replace(THEIRS, elsewhere=replace(AWAY, entry=entry(2, 3, both_ways=False))),
        account(0, waits=False),
    ),
    "this rank waits for a third rank": (
        account(1, entry(1, 5, both_ways=False)),
        replace(account(3, waits=False), elsewhere=AWAY),
        THERE,
    ),
    "this rank does not wait": (replace(MINE, waits=-1), THEIRS, THERE),
}


@pytest.mark.parametrize("why", NO_PROOF)
def test_all_else_is_no_proof(why: str) -> None:
    assert crossed(*NO_PROOF[why]) is None


def test_what_is_longer_ago_than_an_account_goes_back_is_no_proof() -> None:
    """A rank may be far ahead, in exchanges with others."""
    later = [entry(2, 6 + k, name="v", done=True) for k in range(3)]
    known = account(2, *later, waits=False, left="ended after 8 exchanges")
    ahead = replace(known, whole=False)
    assert judge(MINE, known) is not None
    assert judge(MINE, ahead) is None
    assert finished(MINE, ahead)
    assert not finished(MINE, known)
    assert crossed(MINE, replace(ahead, elsewhere=AWAY), THERE) is None
    assert crossed(MINE, replace(known, elsewhere=AWAY), THERE) is not None
    assert crossed(MINE, THEIRS, account(1, *later, waits=False)) is not None
    assert crossed(MINE, THEIRS, replace(account(1, *later, waits=False), whole=False)) is None


def test_of_two_that_wait_for_each_other_neither_may_have_forgotten() -> None:
    mine = account(1, entry(1, 4, done=True), entry(1, 5))
    theirs = account(2, entry(2, 5, name="v", phase=1), entry(2, 2, phase=1))
    assert judge(mine, theirs) is not None
    assert judge(replace(mine, whole=False), theirs) is None  # it may have posted that backward
    assert judge(mine, replace(theirs, whole=False)) is None


def test_a_backward_is_posted_after_its_forward_so_what_is_known_since_then_is_proof() -> None:
    mine = replace(account(1, entry(1, 4, done=True), entry(1, 4, phase=1)), whole=False)
    theirs = replace(account(2, entry(2, 4, done=True), entry(2, 5)), whole=False)
    assert judge(mine, theirs) is not None
    assert judge(theirs, mine) is not None


def test_an_account_is_read_as_it_was_written() -> None:
    assert read_account(THEIRS.dumps()) == THEIRS
    assert isinstance(read_account(THEIRS.dumps()), Account)


def one(rank: int) -> torch.Tensor:
    return torch.tensor([float(rank)])


def two(timeout: float) -> tuple[Exchange, Exchange]:
    """Return exchanges over two groups of all ranks, with the ranks in another order."""
    backwards = list(reversed(range(dist.get_world_size())))
    groups = (dist.group.WORLD, dist.new_group(backwards, use_local_synchronization=False))
    first, second = (
        Exchange(Ring, RawDDPAdapter(group), name=name, timeout=timeout)
        for group, name in zip(groups, ("here", "there"), strict=True)
    )
    return first, second


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("culprit", [0, -1])
def test_ranks_that_begin_with_another_group_are_told_so_at_once(
    rank: int, world_size: int, culprit: int
) -> None:
    here, there = two(timeout=20.0)
    order = [here, there]
    for exchange in order:
        exchange.shift(one(rank))
    if rank == culprit % world_size:
        order.reverse()

    def go_round() -> None:
        for exchange in order * world_size:  # one that is far away may finish some before it hears
            exchange.shift(one(rank))

    begun = time.monotonic()
    with pytest.raises(ExchangeMismatch, match=TOLD):
        go_round()
    assert time.monotonic() - begun < 8


@pytest.mark.ranks(2)
def test_a_rank_whose_other_thread_answers_late_raises_no_alarm(rank: int) -> None:
    here, there = two(timeout=20.0)
    here.shift(one(rank))
    got = []
    thread = threading.Thread(target=lambda: got.append(there.shift(one(rank))))
    if rank == 1:
        thread.start()
        time.sleep(2.5)  # rank 0 waits here for this thread, and the other one there for rank 0
        got.append(here.shift(one(rank)))
        thread.join(20)
    else:
        got = [exchange.shift(one(rank)) for exchange in (here, there)]
    assert [x.item() for x in got] == 2 * [1 - rank]


@pytest.mark.ranks(2)
def test_what_is_not_proven_is_said_at_the_deadline(rank: int) -> None:
    here, there = two(timeout=3.0)
    here.shift(one(rank))
    text = f"rank {1 - rank} waits in another group, in exchange"
    errors: list[BaseException] = []

    def wait_there() -> None:
        there.shift(one(rank))
        try:
            there.shift(one(rank))
        except ExchangeTimeout as error:
            errors.append(error)

    thread = threading.Thread(target=wait_there)
    if rank == 1:
        thread.start()
        thread.join(20)
        assert len(errors) == 1
        assert f"rank {1 - rank} waits in another group" in str(errors[0])
    else:
        there.shift(one(rank))
        with pytest.raises(ExchangeTimeout, match=text):
            here.shift(one(rank))
