"""Which messages a call takes: the same on both ends, for every plan and every shape."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import Mesh, Ring
from collectives.call import Call
from collectives.messages import PACK_UP_TO, SHARE_FROM, Leaf
from collectives.plan import Plan, plan_exchange, plan_permute, plan_shift

LEAVES = st.builds(
    Leaf,
    st.lists(st.sampled_from([0, 1, 3, 40, 200]), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.float64, torch.int8, torch.float8_e5m2]),
)
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


def test_unsigned_tags_tell_the_lanes_apart_and_nothing_else() -> None:
    leaf = Leaf((3,), torch.float32)
    specs = ((leaf,), (leaf,))
    call = Call(plan_exchange(Ring(2), 0, 0), specs, specs, verify="off")
    assert [message.tag for message in call.send_singles] == [0, 1]
