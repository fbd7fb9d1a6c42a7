"""The dot-product test: is the backward of an exchange its adjoint?

It needs no reference: for a linear map A and its adjoint, <A x, v> = <x, A* v>, where both sides
are summed over ranks. (DistDL tests its operators so.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..trees import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..exchange import Exchange

__all__ = ["check_adjoint"]


def check_adjoint(
    exchange: Exchange,
    operation: Callable[..., object],
    *inputs: object,
    seed: int = 0,
    tolerance: float = 1e-12,
) -> float:
    """Check that the backward of ``operation`` is its adjoint.

    Called by: every rank of ``exchange``.

    Args:
        exchange: Sums over ranks, and joins the loss, so that every rank takes part.
        operation: Linear: ``operation(*inputs)`` returns a tree of tensors.
        inputs: Trees of tensors, best in float64; made leaves that require grad here.
        seed: Of the random cotangent, which differs from rank to rank.
        tolerance: Largest error relative to the norms.

    Returns:
        The relative error, equal on all ranks but for rounding.

    Raises:
        AssertionError: It is larger than ``tolerance``.

    Example:
        >>> def program(adapter):
        ...     exchange = Exchange(Ring, adapter)
        ...     x = torch.randn(3, dtype=torch.float64)
        ...     return check_adjoint(exchange, lambda x: exchange.shift(x, 2), x) < 1e-12
        >>> simulate(3, program)
        [True, True, True]
    """
    given, structure = flatten(list(inputs), "check_adjoint")
    leaves = [_leaf(x) for x in given]
    wrt = [x for x in leaves if x.requires_grad]
    with torch.enable_grad():
        arguments = unflatten(structure, leaves)
        assert isinstance(arguments, list)
        outputs, _ = flatten(operation(*arguments), "check_adjoint")
        outputs = [y for y in outputs if y.is_floating_point() or y.is_complex()]
        generator = torch.Generator().manual_seed(seed * 1009 + exchange.rank)
        cotangents = [_random_like(y, generator) for y in outputs]
        forward = _dot(outputs, cotangents)
        joined = exchange.join(forward)
        # Towards the root of the chain too: else a rank that only receives would leave out its
        # part. Where nothing leaves or arrives at all there is none.
        root = exchange._bound().engine.state.chain.root
        grads: Sequence[Tensor | None] = [None] * len(wrt)
        if joined.requires_grad:
            *grads, _ = torch.autograd.grad(joined, [*wrt, root], allow_unused=True)
    given_back = [torch.zeros_like(x) if g is None else g for x, g in zip(wrt, grads, strict=True)]
    sums = torch.stack(
        [
            forward.detach(),
            _dot(wrt, given_back),
            *(_dot(v, v) for v in (outputs, cotangents, wrt, given_back)),
        ]
    ).detach()
    left, right, *squares = _sum_over_ranks(exchange, sums).tolist()
    y, v, x, back = (max(square, 0.0) ** 0.5 for square in squares)
    scale = max(y * v, x * back)
    error = abs(left - right) / scale if scale > 0 else abs(left - right)
    assert error <= tolerance, (
        f"check_adjoint: <Ax, v> = {left}, <x, A*v> = {right}: relative error {error:.3g} above"
        f" {tolerance:.3g} (rank {exchange.rank} of {exchange.size})"
    )
    return float(error)


def _leaf(x: Tensor) -> Tensor:
    differentiable = x.is_floating_point() or x.is_complex()
    return x.detach().clone().requires_grad_(differentiable)


def _random_like(y: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(y.shape, dtype=y.dtype, generator=generator).to(y.device)


def _dot(left: list[Tensor], right: list[Tensor]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for a, b in zip(left, right, strict=True):
        total = total + (a.conj() * b).sum().real.to("cpu", torch.float64)
    return total


@torch.no_grad()
def _sum_over_ranks(exchange: Exchange, values: Tensor) -> Tensor:
    size = exchange.size
    ring = [(rank, (rank + 1) % size) for rank in range(size)]
    total = passing = values.to(exchange.device)
    for _ in range(size - 1):
        passing = exchange.permute(passing, ring)
        total = total + passing
    return total
