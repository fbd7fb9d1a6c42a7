"""Which rows of a sharded dim a rank needs, and from whom: integers only, no torch.

A dim of a field lies in shards along a line of ranks, in their order, each with a size of its own.
A rank that needs rows beyond its shard takes them from the rank next to it, or, beyond the end of
the field, from a rule (zeros, reflection). A :class:`Strip` says how many of each::

    >>> plan_strips((3, 2), Margin(1, 2).needs((3, 2)), wraps=False)[0]
    Strip(size=3, before=1, after=2, from_left=0, from_right=2, to_left=0, to_right=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

__all__ = ["Margin", "Reach", "Rows", "Strip", "misfit", "offsets", "plan_strips"]


class Rows(NamedTuple):
    """Rows ``start..stop - 1`` of the field; below 0 and from its size on: beyond its ends."""

    start: int
    stop: int


class Reach(Protocol):
    """How far beyond its own shard each rank must see; hashable, alike on all ranks."""

    def needs(self, sizes: Sequence[int]) -> tuple[Rows, ...]:
        """Return the rows that each rank of a line needs, given all its shards' sizes."""


@dataclass(frozen=True, slots=True)
class Margin:
    """The same number of rows around every shard.

    Args:
        before: Rows in front of it.
        after: Rows behind it.
    """

    before: int
    after: int

    def needs(self, sizes: Sequence[int]) -> tuple[Rows, ...]:
        """Return each rank's shard with its margins."""
        return tuple(
            Rows(offset - self.before, offset + size + self.after)
            for offset, size in zip(offsets(sizes), sizes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Strip:
    """What one rank adds to its shard along one dim, in rows, and what it gives to its neighbours.

    Args:
        size: Of its shard.
        before: Rows added in front: ``from_left`` of them by the left neighbour, or all by a rule.
        after: Rows added behind, likewise.
        from_left: Rows that come from the left neighbour: its last ones.
        from_right: Rows that come from the right neighbour: its first ones.
        to_left: Of its first rows, so many go to the left neighbour.
        to_right: Of its last rows, so many go to the right neighbour.

    ``made_before`` and ``made_after`` are the rows that lie beyond an end of the field.
    """

    size: int
    before: int
    after: int
    from_left: int
    from_right: int
    to_left: int
    to_right: int
    made_before: int = field(init=False, repr=False, compare=False)
    made_after: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made_before", self.before - self.from_left)
        object.__setattr__(self, "made_after", self.after - self.from_right)


def offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return at which row of the field each shard begins."""
    return tuple(accumulate(sizes, initial=0))[:-1]


def plan_strips(sizes: Sequence[int], needs: Sequence[Rows], *, wraps: bool) -> tuple[Strip, ...]:
    """Return the strip of each rank of a line.

    Args:
        sizes: Of the shards, in the order of the ranks.
        needs: What each rank needs.
        wraps: Whether the first rank's left neighbour is the last one.
    """
    count = len(sizes)
    before, after = [], []
    for offset, size, rows in zip(offsets(sizes), sizes, needs, strict=True):
        before.append(max(offset - rows.start, 0))
        after.append(max(rows.stop - offset - size, 0))
    from_left = [rows if wraps or i > 0 else 0 for i, rows in enumerate(before)]
    from_right = [rows if wraps or i < count - 1 else 0 for i, rows in enumerate(after)]
    return tuple(
        Strip(
            size=sizes[i],
            before=before[i],
            after=after[i],
            from_left=from_left[i],
            from_right=from_right[i],
            to_left=from_right[i - 1],
            to_right=from_left[(i + 1) % count],
        )
        for i in range(count)
    )


def misfit(strips: Sequence[Strip], mode: str) -> str | None:
    """Return what a line cannot do, in words; ``None`` if it can do everything.

    Rows come from the next rank only, so its shard must hold them; and at an end of the field the
    rule needs rows of the last shard: ``width`` + 1 for "reflect", one for "replicate".
    """
    for i, strip in enumerate(strips):
        wanted = max(strip.to_left, strip.to_right)
        if wanted > strip.size:
            return (
                f"a halo reaches into the next shard only: expected at least {wanted} rows on"
                f" every rank that gives so many, got {strip.size} at position {i} of the shards"
                f" {_sizes(strips)}; use fewer ranks along the axis, or a narrower halo"
            )
        made = max(strip.made_before, strip.made_after)
        least = {"replicate": 1, "reflect": made + 1}.get(mode, 0) if made else 0
        if least > strip.size:
            return (
                f"mode {mode!r} makes {made} rows of the last shard's own: expected at least"
                f" {least} rows there, got {strip.size} at position {i} of the shards"
                f" {_sizes(strips)}; use fewer ranks along the axis, or a narrower halo"
            )
    return None


def _sizes(strips: Sequence[Strip]) -> tuple[int, ...]:
    return tuple(strip.size for strip in strips)
