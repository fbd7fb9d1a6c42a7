"""Trees as tensors, and tensors as blocks for each rank of a line; what cannot be is refused."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, SupportsIndex

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .dtypes import as_memory
from .errors import ArgumentError
from .line import shares
from .sizes import check_fit, check_sizes
from .trees import Structure, flatten

if TYPE_CHECKING:
    from .along import Along, Leaves
    from .sizes import Sizes

__all__ = ["Op", "check_op", "check_source", "join_blocks", "leaves_of", "split_leaves"]

Op = Literal["sum", "mean", "max"]


def leaves_of(along: Along, tree: object, dim: int | None = None) -> tuple[Leaves, Structure]:
    """Return the tensors of a tree as plain ones, and how it is built."""
    found, structure = flatten(tree, f"{along.op} {along.here}")
    if tree is None:
        raise ArgumentError(
            f"{along.op}: expected a tree of tensors, got None {along.here}; every rank gives one,"
            " whose shapes and dtypes are also those of what it gets"
        )
    if dim is not None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise ArgumentError(f"{along.op}: dim must be an int, got {dim!r} {along.here}")
        for x in found:
            if not -x.dim() <= dim < x.dim():
                raise ArgumentError(
                    f"{along.op}: every tensor must have dim {dim}, got shape {tuple(x.shape)}"
                    f" {along.here}; give a number a dim by x.unsqueeze(0)"
                )
    along.constant = not any(x.requires_grad for x in found)
    # As aliases: a leaf that goes to many ranks collects its gradients there, in their order.
    return [along.plain(x) for x in found], structure


def split_leaves(along: Along, leaves: Leaves, dim: int, sizes: Sizes | None) -> list[Leaves]:
    """Cut every leaf into a block for each position."""
    given = None if sizes is None else check_sizes(along, sizes)
    cut = []
    for x in leaves:
        check_fit(along, [x.shape[dim]], x.shape[dim] if given is None else sum(given), dim)
        cut.append(x.split(shares(x.shape[dim], along.count) if given is None else given, dim))
    return [list(parts) for parts in zip(*cut, strict=True)] or [[] for _ in range(along.count)]


def join_blocks(blocks: Sequence[Leaves], dim: int) -> Leaves:
    """Put blocks together along ``dim``, leaf by leaf; always new tensors."""
    return [_cat(parts, dim) for parts in zip(*blocks, strict=True)]


def _cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    whole = torch.cat(list(map(as_memory, parts)), dim)
    return whole if whole.dtype is parts[0].dtype else whole.view(parts[0].dtype)


def check_source(along: Along, source: SupportsIndex) -> int:
    """Return a position on the line as a plain int, or say why it is none."""
    try:
        position = -1 if isinstance(source, bool) else operator.index(source)
    except TypeError:
        position = -1
    if not 0 <= position < along.count:
        raise ArgumentError(
            f"{along.op}: source must be in 0..{along.count - 1}, got {source!r} {along.here}"
        )
    return position


def check_op(along: Along, leaves: Leaves, op: Op) -> None:
    """Refuse what cannot be reduced, before anything is sent."""
    if op not in ("sum", "mean", "max"):
        raise ArgumentError(
            f"{along.op}: op must be 'sum', 'mean' or 'max', got {op!r} {along.here}"
        )
    for dtype in dict.fromkeys(x.dtype for x in leaves):
        if reason := _cannot_reduce(op, dtype):
            raise ArgumentError(
                f"{along.op}: tensors of {dtype} have no {op} {along.here}: {reason}; convert them"
                " first, x.to(torch.float32) or another dtype"
            )


def _cannot_reduce(op: Op, dtype: torch.dtype) -> str:
    """Return why torch cannot; "" if it can."""
    if op != "max" and dtype is torch.bool:
        return "they are neither numbers to add nor to divide"
    if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        return "it would be no integer"
    return "" if is_compiling() else _lacks_kernel(op, dtype)


@functools.lru_cache(maxsize=128)
def _lacks_kernel(op: Op, dtype: torch.dtype) -> str:
    """Return why torch has no kernel for it; "" if it has. Compilers find that out themselves."""
    try:
        x: Tensor = torch.empty(2, dtype=dtype)
        x.amax(0) if op == "max" else x + x
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
