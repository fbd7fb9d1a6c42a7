"""The operators that tie the token to a loss in compiled graphs.

A backward exchange whose result nobody used sends zeros, which are the same whatever the gradient.
If its token were too, the exchange would depend on nothing that only backward has, and compilers
would run it in the forward call. (The gradient of ``torch.cat`` to what has no elements is such a
token.) So backward begins with an operator that takes the gradient of the loss, and into which no
compiler can look.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ..tracing import untraced

__all__ = ["join_op"]


def _join(loss: Tensor, token: Tensor) -> Tensor:
    del token  # only an order
    return loss.clone(memory_format=torch.contiguous_format)  # what operators return is no alias


def _fake_join(loss: Tensor, token: Tensor) -> Tensor:
    del token
    return torch.empty_like(loss, memory_format=torch.contiguous_format)


def _begin(gradient: Tensor) -> Tensor:
    del gradient
    return torch.empty(0, device="cpu")


@untraced
def _adjoint(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:
    del ctx
    return gradient, begin_op(gradient)


def _nothing(ctx: FunctionCtx, gradient: Tensor) -> None:
    """No value of the loss' gradient goes into the token."""
    del ctx, gradient


join_op = torch.library.custom_op(
    "collectives::join", _join, mutates_args=(), schema="(Tensor loss, Tensor token) -> Tensor"
)
join_op.register_fake(_fake_join)
join_op.register_autograd(_adjoint)
begin_op = torch.library.custom_op(
    "collectives::begin", _begin, mutates_args=(), schema="(Tensor gradient) -> Tensor"
)
begin_op.register_fake(_begin)
begin_op.register_autograd(_nothing)
