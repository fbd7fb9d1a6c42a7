"""The functions of open_clip, with its signatures.

The functions that people copy from its SigLIP loss swap the two sides on two ranks, fail on one,
and leave a rank waiting whose loss does not use what arrives. These do not::

    from collectives.compat import join, neighbour_exchange_bidir_with_grad

    from_right, from_left = neighbour_exchange_bidir_with_grad(left, right, to_left, to_right)
    ...
    join(loss).backward()

Neighbours need not be those of a ring, but must agree: ``to_left`` goes to ``left_rank``, for whom
this rank is its ``right_rank``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..binding import Binding, Route
from ..joining import join_chain
from ..move import move
from ..plan import LEFTWARD, RIGHTWARD, Lane, Plan
from .hidden import binding_of, member

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "join",
    "neighbour_exchange",
    "neighbour_exchange_bidir",
    "neighbour_exchange_bidir_with_grad",
    "neighbour_exchange_with_grad",
]


def neighbour_exchange(
    from_rank: int, to_rank: int, tensor: Tensor, group: ProcessGroup | None = None
) -> Tensor:
    """Send ``tensor`` to ``to_rank`` and return what ``from_rank`` sent; no gradient.

    Args:
        from_rank: Global rank.
        to_rank: Global rank.
        tensor: Of the same shape and dtype on all ranks; any strides.
        group: Both ranks are members; default: the default group.

    Raises:
        ArgumentError: No such rank in the group.
        ExchangeError: It was started and did not succeed.
    """
    with torch.no_grad():
        return neighbour_exchange_with_grad(from_rank, to_rank, tensor, group)


def neighbour_exchange_with_grad(
    from_rank: int, to_rank: int, tensor: Tensor, group: ProcessGroup | None = None
) -> Tensor:
    """Do :func:`neighbour_exchange`, differentiably; see :func:`join`.

    Gradient: that of what this rank sent comes back from ``to_rank``.
    """
    binding = binding_of(tensor.device, group)
    lane = Lane(
        RIGHTWARD,
        member(binding, "neighbour_exchange", to_rank),
        member(binding, "neighbour_exchange", from_rank),
    )
    (arrived,) = _move(binding, "neighbour_exchange", (lane,), (tensor,))
    return arrived


def neighbour_exchange_bidir(
    left_rank: int,
    right_rank: int,
    tensor_to_left: Tensor,
    tensor_to_right: Tensor,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Exchange with both neighbours; return ``(from_right, from_left)``, as open_clip does.

    No gradient. ``from_right`` is expected like ``tensor_to_left``, ``from_left`` like
    ``tensor_to_right``.

    Raises:
        ArgumentError: No such rank in the group.
        ExchangeError: It was started and did not succeed.
    """
    with torch.no_grad():
        return neighbour_exchange_bidir_with_grad(
            left_rank, right_rank, tensor_to_left, tensor_to_right, group
        )


def neighbour_exchange_bidir_with_grad(
    left_rank: int,
    right_rank: int,
    tensor_to_left: Tensor,
    tensor_to_right: Tensor,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Do :func:`neighbour_exchange_bidir`, differentiably; see :func:`join`."""
    binding = binding_of(tensor_to_left.device, group)
    left, right = (
        member(binding, "neighbour_exchange", left_rank),
        member(binding, "neighbour_exchange", right_rank),
    )
    lanes = (Lane(LEFTWARD, left, right), Lane(RIGHTWARD, right, left))
    tensors = (tensor_to_left, tensor_to_right)
    from_right, from_left = _move(binding, "neighbour_exchange_bidir", lanes, tensors)
    return from_right, from_left


def join(loss: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Tie all exchanges of the group to ``loss``, before ``backward()``: see ``Exchange.join``."""
    return join_chain(binding_of(loss.device, group), loss)


def _move(
    binding: Binding, op: str, lanes: tuple[Lane, ...], tensors: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    route = binding.routes.get((op, lanes))
    if route is None:
        plan = Plan(op, binding.engine.rank, binding.engine.size, lanes)
        route = binding.routes[op, lanes] = Route(plan)
    return cast("tuple[Tensor, ...]", move(binding, route, tensors))
