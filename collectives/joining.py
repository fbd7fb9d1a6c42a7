"""Tying the exchanges of a group to a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, is_grad_enabled

from . import autograd
from .checks import check_loss
from .prepare import raise_left_over
from .transforms import transformed

if TYPE_CHECKING:
    from .binding import Binding

__all__ = ["join_chain"]


def join_chain(binding: Binding, loss: Tensor) -> Tensor:
    """Tie the chain of a group to ``loss`` and cut it; see :meth:`Exchange.join`."""
    check_loss(loss)
    raise_left_over(binding)
    if not is_grad_enabled() or transformed():
        return loss  # a torch.func transform owns the graph that it differentiates
    token = binding.engine.state.chain.take()
    return loss if token is None else autograd.join(loss, token)
