"""What people write today: neighbour exchanges on plain ``torch.distributed``, over a ring.

The controls of tests/public_reports: each test there that says "the plain form is wrong" runs one
of these, so that it would fail if our library did the same. ``both_ways`` posts in the order of
the function that is copied most (open_clip's two-way neighbour exchange): send right, send left,
receive from right, receive from left.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

__all__ = ["Exchanged", "Shifted", "both_ways", "neighbours", "shift"]


def neighbours() -> tuple[int, int]:
    """Return the left and the right neighbour of this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % size, (rank + 1) % size


def shift(tensor: Tensor, offset: int = 1) -> Tensor:
    """Send to the right (or, with -1, to the left) and return what comes from the other side."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arrived = torch.zeros_like(tensor)
    _post(
        dist.P2POp(dist.isend, tensor, (rank + offset) % size),
        dist.P2POp(dist.irecv, arrived, (rank - offset) % size),
    )
    return arrived


def both_ways(to_left: Tensor, to_right: Tensor) -> tuple[Tensor, Tensor]:
    """Return (from_right, from_left)."""
    left, right = neighbours()
    from_right, from_left = torch.zeros_like(to_left), torch.zeros_like(to_right)
    _post(
        dist.P2POp(dist.isend, to_right, right),
        dist.P2POp(dist.isend, to_left, left),
        dist.P2POp(dist.irecv, from_right, right),
        dist.P2POp(dist.irecv, from_left, left),
    )
    return from_right, from_left


def _post(*ops: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(ops)):
        work.wait()


class Shifted(torch.autograd.Function):
    """``shift``, differentiably: backward shifts the gradient to the left."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        del ctx
        return shift(tensor)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        del ctx
        return shift(grads[0], -1)


class Exchanged(torch.autograd.Function):
    """``both_ways``, differentiably: backward exchanges the gradients with the sides crossed."""

    @staticmethod
    def forward(ctx: FunctionCtx, to_left: Tensor, to_right: Tensor) -> tuple[Tensor, Tensor]:
        del ctx
        return both_ways(to_left, to_right)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor]:
        del ctx
        of_from_right, of_from_left = grads
        to_right_back, to_left_back = both_ways(of_from_left, of_from_right)
        return to_left_back, to_right_back
