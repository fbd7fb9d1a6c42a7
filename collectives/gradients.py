"""Gradients and tangents in the order of a call's tables, as autograd hands them over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call import Call
    from .flight import Flight
    from .messages import Leaf

__all__ = ["Grads", "gradients_of", "mark_constants", "outputs_of", "single", "spread", "zeros"]

Grads = tuple[Tensor | None, ...]


def outputs_of(flight: Flight, results: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return what a node may return: an alias of a caller's buffer, never the buffer itself.

    The alias shares the version counter, so that refilling the buffer while an older result is
    still needed for backward raises torch's own error.
    """
    return results if flight.outs is None else list(map(Tensor.detach, results))


def mark_constants(ctx: FunctionCtx, call: Call, outputs: Sequence[Tensor]) -> None:
    """Tell autograd which outputs carry no gradient."""
    if call.constant_outputs:
        ctx.mark_non_differentiable(*[outputs[i] for i in call.constant_outputs])


def gradients_of(flight: Flight, grads: Grads) -> list[Tensor]:
    """Return the gradients of the differentiable outputs; zeros where an output was not used."""
    call, device = flight.call, flight.engine.device
    return [
        single(flight, grad) if (grad := grads[i]) is not None else zeros(call.outputs[i], device)
        for i in call.differentiable_outputs
    ]


def single(flight: Flight, tensor: Tensor) -> Tensor:
    """Return what came from autograd unless it stands for a batch, which has no memory to send."""
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        raise ArgumentError(
            f"{flight.call.plan.op}: cannot run under vmap (rank {flight.engine.rank} of"
            f" {flight.engine.size}); leave vectorize=True and is_grads_batched=True out"
        )
    return tensor


def zeros(leaf: Leaf, device: torch.device) -> Tensor:
    """Return the gradient or tangent of what was not used."""
    return torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)


def spread(indices: list[int], values: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """Return ``count`` places, ``None`` but for the values at their indices."""
    places: list[Tensor | None] = [None] * count
    for index, value in zip(indices, values, strict=True):
        places[index] = value
    return places
