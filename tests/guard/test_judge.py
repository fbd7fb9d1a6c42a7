"""Verdicts: every proof is found, and nothing that is only slow is called wrong."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import Ring
from collectives.call import Call
from collectives.guard.account import Account, Cause, Entry, entry_of, read_account, read_cause
from collectives.guard.judge import judge
from collectives.messages import Leaf
from collectives.plan import plan_exchange, plan_shift
from collectives.state import tag_mix
from collectives.trace import Trace

SIZE = 4


def entry(
    rank: int,
    sequence: int,
    *,
    name: str = "kv",
    shape: tuple[int, ...] = (4,),
    dtype: torch.dtype = torch.float32,
    step: tuple[int, ...] = (0,),
    phase: int = 0,
    offset: int = 1,
    periodic: bool = True,
    size: int = SIZE,
    both_ways: bool = True,
    grad: bool = False,
    done: bool = False,
    owner: int = 1,
) -> Entry:
    ring = Ring(size, periodic=periodic)
    plan = plan_exchange(ring, rank, 0) if both_ways else plan_shift(ring, rank, 0, offset)
    lanes = ((Leaf(shape, dtype),),) * len(plan.lanes)
    call = Call(
        plan, lanes, lanes, name=name, topology=repr(ring), grad=grad, phase=phase, owner=owner
    )
    trace = Trace(call, sequence, step, begun=1.0)
    trace.ended = 2.0 * done
    return entry_of(trace, tag_mix(step, sequence), "train.py:7")


def account(rank: int, *entries: Entry, waits: bool = True, left: str = "") -> Account:
    count = max((e.signature.sequence for e in entries), default=0)
    return Account(rank, entries, len(entries) - 1 if waits else -1, count, left)


def verdict(mine: Account, theirs: Account) -> str:
    found = judge(mine, theirs)
    return "" if found is None else f"{found.kind}: {found.text}"


DIFFERENT = {
    "name": {"name": "v"},
    "tensors": {"shape": (8,)},
    "dtype": {"dtype": torch.int32},
    "step": {"step": (1,)},
    "op": {"both_ways": False},
    "topology": {"periodic": False},
    "grad": {"grad": True},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_exchange_of_the_same_number_is_proof(what: str) -> None:
    mine, other = entry(1, 5), entry(2, 5, **DIFFERENT[what])  # type: ignore[arg-type]
    for first, second in ((mine, other), (other, mine)):
        ranks = (1, 2) if first is mine else (2, 1)
        text = verdict(account(ranks[0], first), account(ranks[1], second))
        assert text.startswith("mismatch: the ranks are in different exchanges; ")
        assert ("tensors" if what == "dtype" else what) in text
        assert "rank 1 waits in exchange #5" in text
        assert "rank 2 waits in exchange #5" in text


def test_it_is_proof_too_when_the_other_is_done_with_its_own() -> None:
    other = entry(2, 5, name="v", done=True)
    text = verdict(account(1, entry(1, 5)), account(2, other, waits=False))
    assert "rank 2 ran exchange #5" in text


def test_a_rank_in_backward_and_one_in_forward_that_wait_for_each_other_are_proof() -> None:
    mine = account(1, entry(1, 4, done=True), entry(1, 4, phase=1))
    theirs = account(2, entry(2, 4, done=True), entry(2, 5))
    text = verdict(mine, theirs)
    assert "phase: backward / forward" in text
    assert verdict(theirs, mine).startswith("mismatch")


def test_a_rank_that_has_left_is_proof() -> None:
    left = Account(2, (entry(2, 4, done=True),), count=4, left="closed its exchange after 4")
    text = verdict(account(1, entry(1, 4, done=True), entry(1, 5)), left)
    assert text.startswith("left: rank 1 waits in exchange #5")
    assert text.endswith("for rank 2, which closed its exchange after 4")


def test_a_rank_that_closed_the_exchange_is_proof_and_another_exchange_is_not() -> None:
    closed = Account(2, (entry(2, 4, done=True),), count=4, closed=(1,))
    text = verdict(account(1, entry(1, 4, done=True), entry(1, 5)), closed)
    assert text.startswith("left: ")
    assert text.endswith("rank 2, which closed that Exchange after 4 exchanges of the group")
    assert judge(account(1, entry(1, 4, done=True), entry(1, 5, owner=2)), closed) is None


def test_a_closed_exchange_is_no_proof_against_its_backward() -> None:
    """Ranks may run it after the block that closes the Exchange: those that are fast do."""
    closed = Account(2, (entry(2, 4, done=True),), count=4, closed=(1,))
    assert judge(account(1, entry(1, 4, done=True), entry(1, 4, phase=1)), closed) is None


def test_a_rank_that_left_after_it_posted_its_part_is_no_proof() -> None:
    left = Account(2, (entry(2, 5, done=True),), count=5, left="closed its exchange after 5")
    assert judge(account(1, entry(1, 5)), left) is None


SLOW = {
    "the same exchange": (account(1, entry(1, 5)), account(2, entry(2, 5))),
    "nothing said yet": (account(1, entry(1, 5)), Account(2)),
    "computing": (account(1, entry(1, 5)), account(2, entry(2, 4, done=True), waits=False)),
    "one behind, for another rank": (
        account(1, entry(1, 4, done=True), entry(1, 5)),
        account(2, entry(2, 4)),
    ),
    "one ahead, for another rank": (
        account(1, entry(1, 4)),
        account(2, entry(2, 4, done=True), entry(2, 5)),
    ),
    "posted, not waited for": (
        account(1, entry(1, 5)),
        account(2, entry(2, 5), entry(2, 6), waits=True),
    ),
    "not needed here": (
        account(0, entry(0, 5, both_ways=False)),
        account(2, entry(2, 5, name="v")),
    ),
}


@pytest.mark.parametrize("why", SLOW)
def test_slow_is_not_wrong(why: str) -> None:
    mine, theirs = SLOW[why]
    assert judge(mine, theirs) is None


def test_a_rank_that_does_not_wait_has_nothing_to_ask() -> None:
    assert judge(account(1, entry(1, 5), waits=False), account(2, entry(2, 5, name="v"))) is None


@given(st.lists(st.integers(0, 12), min_size=SIZE, max_size=SIZE), st.integers(0, 12))
def test_ranks_that_run_one_program_are_never_called_wrong(done: list[int], posted: int) -> None:
    """Whatever each has finished, and however many exchanges it has started beyond that."""

    def stands(rank: int) -> Account:
        entries = [
            entry(rank, n, name=f"x{n % 3}", step=(n // 4,), done=n <= done[rank])
            for n in range(1, done[rank] + posted + 2)
        ]
        return Account(rank, tuple(entries), waits=done[rank], count=len(entries))

    accounts = [stands(rank) for rank in range(SIZE)]
    assert not any(judge(mine, theirs) for mine in accounts for theirs in accounts)


# -- what travels --------------------------------------------------------------------------------


def test_an_account_is_read_as_it_was_written() -> None:
    written = account(2, entry(2, 4, done=True), entry(2, 5, name="v", phase=1), left="so")
    assert read_account(written.dumps()) == written


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(anything)
def test_anything_else_is_no_account_and_no_cause(value: object) -> None:
    assert read_account(json.dumps(value)) is None
    assert read_cause(json.dumps(value)) is None


@given(
    st.sampled_from(["rank", "entries", "waits", "count", "left", "closed", "elsewhere"]), anything
)
def test_an_account_with_one_wrong_field_is_none_or_still_one(field: str, value: object) -> None:
    data = json.loads(account(2, entry(2, 4)).dumps())
    read = read_account(json.dumps({**data, field: value}))
    assert read is None or isinstance(read, Account)


@given(st.binary(max_size=64))
def test_bytes_that_are_no_json_are_none(data: bytes) -> None:
    assert read_account(data) is None or data.strip().startswith(b"{")


def test_what_is_too_long_is_not_read_and_long_texts_are_cut() -> None:
    assert read_account(" " * 300_000 + account(2, entry(2, 4)).dumps()) is None
    long = entry(2, 4, name="n" * 10_000)
    other = entry(1, 4, name="n" * 9_999 + "m")
    assert len(long.signature.name) == 400
    assert "too long to be shown" in verdict(account(2, long), account(1, other))
    assert len(Cause("mismatch", 1, "t" * 10_000).dumps()) < 5_000


def test_of_an_account_that_is_too_long_the_oldest_entries_are_left_out() -> None:
    many = [entry(2, n, name=chr(0x1F600) * 10_000) for n in range(1, 65)]
    written = account(2, *many, left="ended after 64 exchanges")
    read = read_account(written.dumps())
    assert read is not None
    assert not read.whole
    assert (read.rank, read.count, read.left) == (2, 64, "ended after 64 exchanges")
    assert read.entries == written.entries[-len(read.entries) :]
    assert read.waiting == written.waiting


def test_an_account_of_many_tensors_is_not_long() -> None:
    plan = plan_exchange(Ring(4), 2, 0)
    lanes = ((Leaf((30_000,), torch.float32),) * 1000,) * len(plan.lanes)
    call = Call(plan, lanes, lanes, name="kv", topology="Ring(4)", grad=False, phase=0, owner=1)
    made = [entry_of(Trace(call, n, (0,), begun=1.0), tag_mix((0,), n)) for n in range(1, 65)]
    read = read_account(account(2, *made).dumps())
    assert read is not None
    assert read.whole
    assert len(read.entries) == 64


def test_a_cause_is_read_as_it_was_written() -> None:
    assert read_cause(Cause("lost", 3, "rank 1 is gone").dumps()) == Cause(
        "lost", 3, "rank 1 is gone"
    )
