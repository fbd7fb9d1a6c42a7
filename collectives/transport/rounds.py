"""Many messages without tags, in batches that no backend chokes on.

A batch of NCCL's with more than about 256 operations can hang, so more than that go in several. One
batch ends before the next begins, so all ranks must cut in a way that fits together: whatever a
batch of one rank waits for must be in a batch of its peer's that does not wait for a later one of
the first. So every message has a place in one order that is the same on all ranks, by how far it
travels and by its number between its two ranks, and each rank cuts that order wherever it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import Post

__all__ = ["MOST_IN_BATCH", "in_rounds"]

MOST_IN_BATCH = 256
# Messages of one pair of ranks that stay together; with their answers they fill half a batch.
_TOGETHER = 64


def in_rounds(
    posts: Sequence[Post], rank: int, size: int, most: int = MOST_IN_BATCH
) -> list[list[Post]]:
    """Return the batches in which messages are posted.

    Args:
        posts: Of one exchange; those of a pair of ranks in the same order on both.
        rank: That posts them.
        size: Ranks of the group.
        most: Messages in a batch; fewer than 128 are no promise.
    """
    if len(posts) <= most:
        return [list(posts)] if posts else []
    rounds: dict[tuple[int, int], list[Post]] = {}
    counts: dict[tuple[str, int], int] = {}
    for post in posts:
        number = counts.get((post.kind, post.peer), 0)
        counts[post.kind, post.peer] = number + 1
        way = post.peer - rank if post.kind == "send" else rank - post.peer
        rounds.setdefault((number // _TOGETHER, way % size), []).append(post)
    return _filled((rounds[place] for place in sorted(rounds)), most)


def _filled(rounds: Iterable[list[Post]], most: int) -> list[list[Post]]:
    """Join neighbouring rounds as long as they go into one batch, sends first."""
    batches: list[list[Post]] = [[]]
    for posts in rounds:
        if len(batches[-1]) + len(posts) > most:
            batches.append([])
        batches[-1] += posts
    return [sorted(batch, key=lambda post: post.kind != "send") for batch in batches]
