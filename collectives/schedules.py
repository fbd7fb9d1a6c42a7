"""How collective operations travel: in one exchange while they are small, round a ring above.

Each schedule is put together from differentiable moves, ``split``, ``cat`` and sums, none of which
saves a tensor for backward. So the backward is the adjoint schedule by construction, each of its
exchanges joins the chain and carries its signature, and it can be differentiated again. (The ring
that gathers, run backwards, is the ring that reduces and scatters.)

In one exchange every rank sends to every other: one latency. Round a ring each rank speaks to its
neighbours on the line only, in n - 1 exchanges of 1/n of the data each: the same bytes, but a node
boundary is crossed by two neighbours instead of by all pairs, and a reduction needs no memory for
n blocks.

torch's own collectives are not used: a wait in one of them is watched by no guard, it is in no
signature, and its order of adding is its own.

No sum is ever made in two places in two orders: where several ranks get one sum, either each of
them adds all terms in the order of their positions, or one rank adds and the others get its result.
So all get the same bits, forward and backward.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .blocks import Op, join_blocks
from .line import shares

if TYPE_CHECKING:
    from .along import Along, Leaves

__all__ = ["Op", "gather", "reduce_all", "reduce_blocks", "spread"]

# Bytes of all ranks' data together up to which everything goes in one exchange.
SMALL = 512 * 1024


def gather(along: Along, mine: Leaves, expected: Sequence[Leaves]) -> list[Leaves]:
    """Return the leaves of every position.

    Args:
        along: The line.
        mine: What this rank contributes.
        expected: Shapes and dtypes of what each position contributes; alike on all ranks.
    """
    count, here = along.count, along.position
    if _small(along, expected):
        return along.to_each([mine] * count, expected)
    blocks, passing = {here: mine}, mine
    for step in range(1, count):
        source = (here - step) % count
        passing = blocks[source] = along.to_next(passing, expected[source])
    return [blocks[q] for q in range(count)]


def reduce_blocks(along: Along, blocks: Sequence[Leaves], op: Op) -> Leaves:
    """Return the reduction, over the line, of what each position has for this one.

    Args:
        along: The line.
        blocks: For each position what it is to reduce; the same shapes on all ranks.
        op: A maximum never goes round a ring: gradients of equal values need all of them at once.
    """
    count, here = along.count, along.position
    if op == "max" or _small(along, blocks):
        return _combined(along.to_each(blocks, [blocks[here]] * count), op)
    passing = blocks[here - 1]
    for step in range(1, count):
        own = blocks[(here - 1 - step) % count]
        arrived = along.to_next(passing, own)
        passing = list(map(operator.add, arrived, own))
    return _mean(passing, count) if op == "mean" else passing


def reduce_all(along: Along, leaves: Leaves, op: Op) -> Leaves:
    """Return the reduction of every leaf over the line, the same bits on all its ranks."""
    if _small(along, [leaves] * along.count):
        return _combined(along.to_each([leaves] * along.count, [leaves] * along.count), op)
    blocks = _pieces(leaves, along.count)
    mine = reduce_blocks(along, blocks, op)
    return _whole(gather(along, mine, blocks), leaves)


def spread(along: Along, leaves: Leaves, source: int) -> Leaves:
    """Return the leaves of position ``source``; those of other ranks say what to expect."""
    count = along.count
    if _small(along, [leaves] * count):
        return along.from_one(source, [leaves] * count)
    blocks = _pieces(leaves, count)
    mine = along.from_one(source, blocks)
    return _whole(gather(along, mine, blocks), leaves)


def _small(along: Along, blocks: Sequence[Leaves]) -> bool:
    """Whether one exchange is best; on two ranks it takes the ring's messages anyway."""
    return along.count <= 2 or sum(_bytes(x) for leaves in blocks for x in leaves) <= SMALL


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()  # x.nbytes, which no compiler knows of sizes that change


def _combined(arrived: Sequence[Leaves], op: Op) -> Leaves:
    """Reduce what came from each position, in the order of the positions."""
    reduced = [_REDUCE[op](parts) for parts in zip(*arrived, strict=True)]
    return _mean(reduced, len(arrived)) if op == "mean" else reduced


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, parts)


def _max(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(parts)).amax(0)  # gradients of equal values are shared evenly


_REDUCE: dict[Op, Callable[[Sequence[Tensor]], Tensor]] = {"sum": _sum, "mean": _sum, "max": _max}


def _mean(leaves: Leaves, count: int) -> Leaves:
    return [x / count for x in leaves]


def _pieces(leaves: Leaves, count: int) -> list[Leaves]:
    """Cut each leaf, as a vector, into a piece for each position."""
    cut = [x.reshape(-1).split(shares(x.numel(), count)) for x in leaves]
    return [list(pieces) for pieces in zip(*cut, strict=True)]


def _whole(blocks: Sequence[Leaves], leaves: Leaves) -> Leaves:
    return [x.view(y.shape) for x, y in zip(join_blocks(blocks, 0), leaves, strict=True)]
