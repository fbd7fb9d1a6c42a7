"""Which messages a call takes: the same on both ends, for every plan and every shape."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import Mesh, Ring
from collectives.call import Call, Specs
from collectives.messages import LONG, PACK_UP_TO, SHARE_FROM, Leaf
from collectives.plan import Lane, Plan, plan_exchange, plan_permute, plan_shift
from collectives.signature import Signature

LEAVES = st.builds(
    Leaf,
    st.lists(st.sampled_from([0, 1, 3, 40, 200]), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.float64, torch.int8, torch.float8_e5m2]),
)
Trees = tuple[tuple[str, str], ...] | None
LANES = st.lists(LEAVES, max_size=5).map(tuple)


def plans(size: int) -> list[list[Plan]]:
    ring, chain = Ring(size), Ring(size, periodic=False)
    pairs = [(r, (r * 2 + 1) % size) for r in range(size)] if size % 2 else [(0, size - 1)]
    mesh = Mesh((size, 2), axes=("y", "x"), periodic=(True, False))
    return [
        [plan_shift(ring, r, 0, 1) for r in range(size)],
        [plan_shift(chain, r, 0, -2) for r in range(size)],
        [plan_exchange(ring, r, 0) for r in range(size)],
        [plan_exchange(chain, r, 0) for r in range(size)],
        [plan_permute(size, r, pairs) for r in range(size)],
        [plan_exchange(mesh, r, 1) for r in range(2 * size)],
    ]


def messages(call: Call, way: str) -> list[tuple[int, int, int]]:
    """(peer, tag, bytes) in the order of posting."""
    singles = call.send_singles if way == "send" else call.recv_singles
    packs = call.send_packs if way == "send" else call.recv_packs
    return [(m.peer, m.tag, m.leaf.nbytes) for m in singles] + [
        (m.peer, m.tag, m.pack.nbytes) for m in packs
    ]


def check_ends_meet(calls: list[Call]) -> None:
    for here in calls:
        rank = here.plan.rank
        for there in calls:
            sent = [m[1:] for m in messages(here, "send") if m[0] == there.plan.rank]
            awaited = [m[1:] for m in messages(there, "recv") if m[0] == rank]
            assert sent == awaited
            assert max(Counter(tag for tag, _ in sent).values(), default=1) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@given(first=LANES, second=LANES)
def test_every_message_has_its_other_end_and_a_tag_of_its_own(
    size: int, first: tuple[Leaf, ...], second: tuple[Leaf, ...]
) -> None:
    for same in plans(size):
        specs = (first, second)[: len(same[0].lanes)]
        calls = [Call(plan, specs, specs, topology="t", grad=True) for plan in same]
        check_ends_meet(calls)
        check_ends_meet([call.reverse() for call in calls])
        for call in calls:
            count = len(call.outputs)
            arriving = [m.position for m in call.recv_singles] + sorted(call.unpacked_later)
            kept = [b for _, b in call.copies] + [i for i, _ in call.fills]
            assert sorted(arriving + kept) == list(range(count))


def exchange_call(size: int, leaf: Leaf) -> Call:
    return Call(plan_exchange(Ring(size), 0, 0), ((leaf,), (leaf,)), ((leaf,), (leaf,)))


@pytest.mark.parametrize(
    ("size", "nbytes", "sent"),
    [
        (2, 4, 2),
        (2, SHARE_FROM // 2, 1),
        (2, PACK_UP_TO, 1),
        (2, PACK_UP_TO + 4, 2),
        (3, PACK_UP_TO, 2),
    ],
)
def test_two_lanes_to_one_peer_share_a_message_of_middle_size(
    size: int, nbytes: int, sent: int
) -> None:
    assert exchange_call(size, Leaf((nbytes // 4,), torch.float32)).messages_sent == sent


@pytest.mark.parametrize(
    ("count", "nbytes", "long"),
    [(1, LONG, True), (1, LONG - 4, False), (64, LONG // 64, True), (63, LONG // 64, False)],
)
def test_messages_are_long_together(count: int, nbytes: int, *, long: bool) -> None:
    leaves = (Leaf((nbytes // 4,), torch.float32),) * count
    plan = plan_shift(Ring(3), 0, 0, 1)
    assert Call(plan, (leaves,), (leaves,)).long is long


def words_of(lanes: tuple[Lane, ...], sends: Specs, recvs: Specs, trees: Trees = None) -> str:
    call = Call(Plan("shift()", 0, 10, lanes), sends, recvs, trees=trees)
    return call.signature(1, (), "").tensors


A, B = (Leaf((2,), torch.float32),), (Leaf((3,), torch.int64),)
BOTH = tuple(Lane(key, 1 + key, 1 + key) for key in range(9))


def test_edges_with_the_same_tensors_are_shown_once_in_their_order() -> None:
    assert words_of(BOTH[:1], (A,), (A,)) == "(float32[2])"
    assert words_of(BOTH[:3], (A, A, B), (A, A, B)) == "(float32[2]) on 2 edges | (int64[3])"
    assert words_of(BOTH[:2], (A, ()), (A, ())) == "(float32[2]) | ()"
    assert words_of(BOTH[:2], (A, A), (B, B)) == "(float32[2]) on 2 edges for (int64[3]) on 2 edges"
    listed = (("list([*])",) * 2, ("", ""))
    expected = "(float32[2]) as list([*]) | (float32[2])"
    assert words_of(BOTH[:2], (A, A), (A, A), listed) == expected
    many = (A, B, A, B, A, B, A, B, B)
    assert words_of(BOTH, many, many).endswith(" | (int64[3]) | ... 3 more edges")


def test_an_edge_that_only_arrives_is_not_said_to_send_nothing() -> None:
    lanes = (Lane(0, 1, None), Lane(1, 2, None), Lane(2, None, 1), Lane(3, None, 2))
    nothing: tuple[Leaf, ...] = ()
    sends, recvs = (A, A, nothing, nothing), (nothing, nothing, A, A)
    assert words_of(lanes, sends, recvs) == "(float32[2]) on 2 edges"


@pytest.mark.parametrize(
    ("mine", "theirs", "differ"),
    [
        ("(a) on 3 edges", "(a)", False),
        ("(a) on 3 edges", "(b) on 3 edges", True),
        ("(a) | ()", "() | (a)", True),
        ("(a) | ()", "(a) on 2 edges", True),
        ("(a) as list([*])", "(a)", True),
        ("(a) on 3 edges for (a)", "(a)", False),  # who spreads something sends more of it
        ("(a) for (b)", "(b) for (a)", True),
    ],
)
def test_only_the_number_of_edges_is_no_difference_between_two_ranks(
    mine: str, theirs: str, *, differ: bool
) -> None:
    ends = [
        Signature("shift()", "", "", "forward", "grad", (), words, 1) for words in (mine, theirs)
    ]
    assert ("tensors" in ends[0].differing(ends[1])) is differ


def test_unsigned_tags_tell_the_lanes_apart_and_nothing_else() -> None:
    leaf = Leaf((3,), torch.float32)
    specs = ((leaf,), (leaf,))
    call = Call(plan_exchange(Ring(2), 0, 0), specs, specs, verify="off")
    assert [message.tag for message in call.send_singles] == [0, 1]
