"""What lies beyond the end of a field: rows made of the shard's own, and the adjoint of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ..strips import Strip
    from .survey import Rule

__all__ = ["MODES", "Mode", "beyond", "edge_rows", "fold_back"]

Mode = Literal["zeros", "replicate", "reflect"]
MODES = ("zeros", "replicate", "reflect")


def edge_rows(mode: Rule, strip: Strip) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, length) of the rows from which those beyond each end are made."""
    before, after, size = strip.made_before, strip.made_after, strip.size
    if mode == "replicate":
        return (0, min(before, 1)), (size - min(after, 1), min(after, 1))
    if mode == "reflect":
        # The outermost row is the mirror, and not repeated.
        return (min(before, 1), before), (max(size - 1 - after, 0) if after else 0, after)
    return (0, 0), (0, 0)


def beyond(mode: Rule, edge: Tensor, dim: int, rows: int) -> Tensor:
    """Return ``rows`` rows made of ``edge``."""
    if mode == "reflect":
        return edge.flip(dim)
    shape = list(edge.shape)
    shape[dim] = rows
    if mode == "replicate" and rows:
        return edge.expand(shape)
    return edge.new_full(shape, _lowest(edge.dtype) if mode == "lowest" else 0)


def fold_back(mode: Rule, made: Tensor, dim: int) -> Tensor:
    """Return what :func:`beyond` hands back to the edge, for a cotangent of the rows made."""
    if mode == "reflect":
        return made.flip(dim)
    if mode == "replicate" and made.shape[dim]:
        return made.sum(dim, keepdim=True)
    return made.narrow(dim, 0, 0)


def _lowest(dtype: torch.dtype) -> float:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min
