"""Cutting slabs out of a shard and putting halos around it: the local half of a halo exchange.

Four linear maps in two adjoint pairs, so that a field of any size is copied once forward and once
backward. As a chain of ``narrow`` and ``cat`` each dim would copy the whole field again, and each
slab's gradient would be a field of zeros. Under torch.func, in forward mode and in compiled code
that chain is used all the same: they see through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from ..tracing import tracing, untraced
from ..transforms import transformed

if TYPE_CHECKING:
    from .layout import Layout, Place

__all__ = ["Assemble", "Cut", "Merge", "Split", "apply", "place_of"]

Tensors = tuple[Tensor, ...]


class Linear(Protocol):
    """A linear map from tensors to tensors, without communication."""

    def run(self, *tensors: Tensor) -> Tensors:
        """Return the values."""

    def plainly(self, *tensors: Tensor) -> Tensors:
        """Return the values by operations that every transform of torch knows."""

    def adjoint(self) -> Linear:
        """Return the adjoint map."""


def apply(linear: Linear, *tensors: Tensor) -> Tensors:
    """Run a map, differentiably."""
    if tracing() or transformed() or forward_ad._current_level >= 0:
        return linear.plainly(*tensors)
    if not torch.is_grad_enabled():
        return linear.run(*tensors)
    outputs: Tensors = _Linear.apply(linear, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, linear: Linear, *tensors: Tensor) -> Tensors:
        ctx.linear = linear  # type: ignore[attr-defined]
        return linear.run(*tensors)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        linear: Linear = ctx.linear  # type: ignore[attr-defined]
        return (None, *apply(linear.adjoint(), *grads))


class Cut:
    """From a shard to the shard and the slabs that are needed of it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def run(self, *tensors: Tensor) -> Tensors:
        """Return an alias of the shard, and views."""
        return self.plainly(tensors[0].detach())

    def plainly(self, *tensors: Tensor) -> Tensors:
        """Return the shard, and views."""
        (x,) = tensors
        return (x, *(span.of(x) for span in self.layout.spans))

    def adjoint(self) -> Merge:
        """Return the sum of all slabs into the shard."""
        return Merge(self.layout)


class Merge:
    """From a shard and slabs of it to their sum."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def run(self, *tensors: Tensor) -> Tensors:
        """Return a new shard."""
        total = tensors[0].clone(memory_format=torch.contiguous_format)
        for span, slab in zip(self.layout.spans, tensors[1:], strict=True):
            if span.length:
                span.of(total).add_(slab)
        return (total,)

    def plainly(self, *tensors: Tensor) -> Tensors:
        """Return a new shard."""
        total = tensors[0].clone()
        for (dim, start, length), slab in zip(self.layout.spans, tensors[1:], strict=True):
            rows = total.narrow(dim, start, length) + slab
            total = total.slice_scatter(rows, dim, start, start + length)
        return (total,)

    def adjoint(self) -> Cut:
        """Return the cutting of slabs."""
        return Cut(self.layout)


class Assemble:
    """From a shard and its halos, left and right for each leg, to the padded shard.

    Args:
        layout: Where everything goes.
        out: Memory for it, or none.
    """

    def __init__(self, layout: Layout, out: Tensor | None = None) -> None:
        self.layout, self.out = layout, out

    def run(self, *tensors: Tensor) -> Tensors:
        """Return a new tensor, or an alias of ``out``; its interior is not copied onto itself."""
        x, layout, padded = tensors[0], self.layout, self.out
        if padded is None:
            padded = torch.empty(layout.padded(x.shape), dtype=x.dtype, device=x.device)
        interior = place_of(layout.interior, padded)
        if self.out is None or interior.data_ptr() != x.data_ptr():
            interior.copy_(x)
        for place, piece in zip(layout.places, tensors[1:], strict=True):
            if place[0].length:
                place_of(place, padded).copy_(piece)
        return (padded if self.out is None else padded.detach(),)

    def plainly(self, *tensors: Tensor) -> Tensors:
        """Return a new tensor."""
        padded, *pieces = tensors
        for i, leg in enumerate(self.layout.legs):
            padded = torch.cat([pieces[2 * i], padded, pieces[2 * i + 1]], leg.dim)
        return (padded,)

    def adjoint(self) -> Split:
        """Return the taking apart of a padded shard."""
        return Split(self.layout)


class Split:
    """From a padded shard to the shard and its halos."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def run(self, *tensors: Tensor) -> Tensors:
        """Return views of an alias."""
        return self.plainly(tensors[0].detach())

    def plainly(self, *tensors: Tensor) -> Tensors:
        """Return views."""
        (padded,) = tensors
        places = (self.layout.interior, *self.layout.places)
        return tuple(place_of(place, padded) for place in places)

    def adjoint(self) -> Assemble:
        """Return the putting together."""
        return Assemble(self.layout)


def place_of(place: Place, padded: Tensor) -> Tensor:
    """Return the view of a place in a padded shard."""
    for span in place:
        padded = span.of(padded)
    return padded
