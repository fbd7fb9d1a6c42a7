"""Batches of at most 256 messages: what each rank cuts off fits what the others do."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.transport import Post
from collectives.transport.rounds import MOST_IN_BATCH, in_rounds

NOTHING = torch.empty(0)
Message = tuple[int, int]  # from a rank to a rank


def posts_of(messages: list[Message], rank: int) -> list[Post]:
    sends = [Post("send", NOTHING, there, 0) for here, there in messages if here == rank]
    receives = [Post("recv", NOTHING, here, 0) for here, there in messages if there == rank]
    return sends + receives


def play(batches: list[list[list[Post]]]) -> bool:
    """Whether all batches end, if each ends when both ends of all of its messages are posted."""
    at = [0] * len(batches)
    posted: dict[tuple[str, int, int], int] = defaultdict(int)
    ended: dict[tuple[str, int, int], int] = defaultdict(int)

    def count(rank: int, into: dict[tuple[str, int, int], int]) -> None:
        for post in batches[rank][at[rank]]:
            here, there = (rank, post.peer) if post.kind == "send" else (post.peer, rank)
            into[post.kind, here, there] += 1

    def fits(rank: int) -> bool:
        needed = ended.copy()
        count(rank, needed)
        return all(
            posted["recv" if kind == "send" else "send", here, there] >= number
            for (kind, here, there), number in needed.items()
        )

    waiting = {rank for rank in range(len(batches)) if batches[rank]}
    for rank in waiting:
        count(rank, posted)
    while waiting:
        done = [rank for rank in waiting if fits(rank)]
        if not done:
            return False
        for rank in done:
            count(rank, ended)
            at[rank] += 1
            if at[rank] == len(batches[rank]):
                waiting.remove(rank)
            else:
                count(rank, posted)
    return True


SIZE = 5
messages = st.lists(
    st.tuples(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), st.integers(1, 150)),
    max_size=8,
).map(lambda runs: [pair for pair, count in runs for _ in range(count)])


@given(messages)
@settings(max_examples=60)
def test_every_rank_gets_through_its_batches(messages: list[Message]) -> None:
    batches = [in_rounds(posts_of(messages, rank), rank, SIZE) for rank in range(SIZE)]
    assert play(batches)
    for rank, of_rank in enumerate(batches):
        assert all(0 < len(batch) <= MOST_IN_BATCH for batch in of_rank)
        assert sorted(p for batch in of_rank for p in key(batch)) == sorted(
            key(posts_of(messages, rank))
        )


def key(posts: list[Post]) -> list[tuple[str, int]]:
    return [(post.kind, post.peer) for post in posts]


def test_what_goes_into_one_batch_is_left_as_it_is() -> None:
    posts = posts_of([(0, 1)] * 100 + [(1, 0)] * 156, 0)
    assert in_rounds(posts, 0, 2) == [posts]
    assert in_rounds([], 0, 2) == []


@pytest.mark.parametrize("size", [9, 40])
def test_all_to_all_gets_through(size: int) -> None:
    messages = [(here, there) for here in range(size) for there in range(size) if here != there]
    by_rank: list[list[Post]] = [[] for _ in range(size)]
    for here, there in messages:
        by_rank[here].append(Post("send", NOTHING, there, 0))
        by_rank[there].append(Post("recv", NOTHING, here, 0))
    batches = [in_rounds(posts, rank, size, most=8) for rank, posts in enumerate(by_rank)]
    assert len(batches[0]) > 1
    assert play(batches)


def test_cutting_where_each_rank_likes_would_not_get_through() -> None:
    """Power: sends of a long exchange first, in the order of their making."""
    messages = [(0, 1)] * 300 + [(1, 0)] * 300
    cut = [
        [posts[i : i + MOST_IN_BATCH] for i in range(0, len(posts), MOST_IN_BATCH)]
        for posts in (posts_of(messages, rank) for rank in range(2))
    ]
    assert not play(cut)
    assert play([in_rounds(posts_of(messages, rank), rank, 2) for rank in range(2)])


def test_messages_of_a_pair_keep_their_order() -> None:
    posts = [Post(kind, torch.empty(i), 1, i) for kind in ("send", "recv") for i in range(400)]
    flat = [post for batch in in_rounds(posts, 0, 2) for post in batch]
    for kind in ("send", "recv"):
        assert [post.tag for post in flat if post.kind == kind] == list(range(400))
