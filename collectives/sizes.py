"""How much comes from each rank of a line: known, assumed, asked, or asked once."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex

import torch

from .call import MOST_CALLS
from .discover import notices
from .errors import ArgumentError

if TYPE_CHECKING:
    from .along import Along, Leaves
    from .routes import Shapes

__all__ = ["Sizes", "check_fit", "check_sizes", "given_sizes", "incoming"]

Sizes = Sequence[SupportsIndex]


def given_sizes(along: Along, leaves: Leaves, sizes: Sizes, dim: int) -> list[Leaves]:
    """Return the shapes and dtypes that come from each position, where the caller says so.

    Raises:
        ArgumentError: They do not fit the line, or what this rank has.
    """
    given = check_sizes(along, sizes)
    check_fit(along, [x.shape[dim] for x in leaves], given[along.position], dim)
    return [_like_with(leaves, [size] * len(leaves), dim) for size in given]


def check_sizes(along: Along, sizes: Sizes) -> list[int]:
    """Return sizes as plain ints, one for each position.

    Raises:
        ArgumentError: Another number of them, or one that is no size.
    """
    try:
        given = [operator.index(size) for size in sizes]
    except TypeError:
        given = []
    if len(given) != along.count or min(given) < 0:
        raise ArgumentError(
            f"{along.op}: sizes must be {along.count} ints from 0 on, one for each rank of the line"
            f" in its order, got {sizes!r} {along.here}"
        )
    return given


def incoming(
    along: Along, leaves: Leaves, outgoing: Sequence[Sequence[int]], dim: int, shapes: Shapes
) -> list[Leaves]:
    """Return the shapes and dtypes that come from each position.

    Args:
        along: The line.
        leaves: Of this rank's tree.
        outgoing: For each position, the size in ``dim`` of each leaf that goes there.
        dim: In which sizes may differ.
        shapes: "same": each rank has what this one has. "discover": they are asked. "once": asked
            when this rank has such leaves for the first time.

    Raises:
        ArgumentError: Another ``shapes``.
        ExchangeMismatch: Some ranks ask where others do not.
    """
    if shapes not in ("same", "discover", "once"):
        raise ArgumentError(
            f"{along.op}: shapes must be 'same', 'discover' or 'once', got {shapes!r} {along.here}"
        )
    if shapes == "same" or not leaves or along.count == 1:
        told: Sequence[Sequence[int]] = [outgoing[along.position]] * along.count
    elif shapes == "discover" or not notices(along.binding.engine, signed=along.binding.signed):
        told = along.ask(outgoing)
    else:
        told = _ask_once(along, leaves, outgoing)
    return [_like_with(leaves, row, dim) for row in told]


def _like_with(leaves: Leaves, sizes: Sequence[int], dim: int) -> Leaves:
    """Return the shapes and dtypes of leaves with other sizes in ``dim``: tensors without data."""
    like = []
    for x, size in zip(leaves, sizes, strict=True):
        shape = list(x.shape)
        shape[dim] = size
        like.append(torch.empty(shape, dtype=x.dtype, device="meta"))
    return like


def check_fit(along: Along, have: Sequence[int], size: int, dim: int) -> None:
    """Refuse sizes that contradict what this rank has."""
    if wrong := [n for n in have if n != size]:
        raise ArgumentError(
            f"{along.op}: sizes= says {size} elements in dim {dim}, but a tensor has {wrong[0]}"
            f" {along.here}"
        )


def _ask_once(along: Along, leaves: Leaves, outgoing: Sequence[Sequence[int]]) -> list[list[int]]:
    along.hint = (
        f"{along.op} with shapes='once' asks only for shapes that are new on this rank: if sizes"
        " changed on some ranks alone, use shapes='discover'"
    )
    known = along.binding.sizes.setdefault(along.op, {})
    key = (tuple((x.shape, x.dtype) for x in leaves), tuple(map(tuple, outgoing)))
    if key not in known:
        if len(known) >= MOST_CALLS:
            known.clear()  # of one operation: so all ranks of the line forget at the same moment
        known[key] = along.ask(outgoing)
    return known[key]
