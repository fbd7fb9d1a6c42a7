"""Who needs which rows of whom: every rank of every line of up to 8, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.strips import Margin, Rows, Strip, misfit, offsets, plan_strips

LINES = st.lists(st.integers(0, 6), min_size=1, max_size=8).map(tuple)
WIDTHS = st.tuples(st.integers(0, 4), st.integers(0, 4))


def rows_that_arrive(strips: tuple[Strip, ...], rank: int, *, wraps: bool) -> list[int | None]:
    """Rows of the field around and on a rank, as its neighbours' gifts make them."""
    starts, count = offsets([strip.size for strip in strips]), len(strips)
    shards = [list(range(o, o + strip.size)) for o, strip in zip(starts, strips, strict=True)]
    left, right, mine = strips[rank - 1], strips[(rank + 1) % count], strips[rank]
    has_left, has_right = wraps or rank > 0, wraps or rank < count - 1
    from_left = shards[rank - 1][left.size - left.to_right :] if has_left else []
    from_right = shards[(rank + 1) % count][: right.to_left] if has_right else []
    assert (len(from_left), len(from_right)) == (mine.from_left, mine.from_right)
    before: list[int | None] = [None] * mine.made_before
    after: list[int | None] = [None] * mine.made_after
    return [*before, *from_left, *shards[rank], *from_right, *after]


@settings(max_examples=200, deadline=None)
@given(sizes=LINES, width=WIDTHS, wraps=st.booleans())
def test_each_rank_gets_the_rows_beside_its_own(
    sizes: tuple[int, ...], width: tuple[int, int], *, wraps: bool
) -> None:
    strips = plan_strips(sizes, Margin(*width).needs(sizes), wraps=wraps)
    if misfit(strips, "zeros"):
        return
    total = sum(sizes)
    for rank, (offset, size) in enumerate(zip(offsets(sizes), sizes, strict=True)):
        wanted = range(offset - width[0], offset + size + width[1])
        expected = [row % total if wraps else row if 0 <= row < total else None for row in wanted]
        assert rows_that_arrive(strips, rank, wraps=wraps) == expected


@settings(max_examples=200, deadline=None)
@given(sizes=LINES, width=WIDTHS, wraps=st.booleans())
def test_what_a_rank_gives_is_what_its_neighbour_takes(
    sizes: tuple[int, ...], width: tuple[int, int], *, wraps: bool
) -> None:
    strips = plan_strips(sizes, Margin(*width).needs(sizes), wraps=wraps)
    for i, strip in enumerate(strips):
        assert strip.to_left == strips[i - 1].from_right
        assert strip.from_left == strips[i - 1].to_right
    if not wraps:
        assert strips[0].to_left == strips[0].from_left == 0
        assert strips[-1].to_right == strips[-1].from_right == 0


@settings(max_examples=200, deadline=None)
@given(sizes=LINES, width=WIDTHS, wraps=st.booleans())
def test_a_line_is_refused_if_and_only_if_a_halo_is_wider_than_a_shard_beside_it(
    sizes: tuple[int, ...], width: tuple[int, int], *, wraps: bool
) -> None:
    before, after = width
    count = len(sizes)
    gives_right = sizes if wraps else sizes[:-1]
    gives_left = sizes if wraps else sizes[1:]
    fits = all(n >= before for n in gives_right) and all(n >= after for n in gives_left)
    strips = plan_strips(sizes, Margin(before, after).needs(sizes), wraps=wraps)
    assert (misfit(strips, "zeros") is None) == fits
    assert count == len(strips)


@pytest.mark.parametrize(
    ("mode", "size", "refused"),
    [
        ("zeros", 0, False),
        ("replicate", 0, True),
        ("replicate", 1, False),
        ("reflect", 2, True),
        ("reflect", 3, False),
    ],
)
def test_a_rule_needs_rows_of_the_last_shard(mode: str, size: int, *, refused: bool) -> None:
    strips = plan_strips((size,), Margin(2, 0).needs((size,)), wraps=False)
    reason = misfit(strips, mode)
    assert (reason is not None) == refused
    assert reason is None or f"mode {mode!r} makes 2 rows" in reason


def test_a_need_within_the_shard_takes_nothing_of_the_neighbours() -> None:
    strips = plan_strips((4, 4), (Rows(1, 3), Rows(4, 9)), wraps=False)
    assert strips[0] == Strip(4, 0, 0, 0, 0, 0, 0)
    assert (strips[1].after, strips[1].from_right, strips[1].made_after) == (1, 0, 1)
