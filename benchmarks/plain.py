"""What the library is compared with: the copied functions, one batch of all, and bare calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from collectives.transport import Work

__all__ = [
    "Neighbour",
    "bare_calls",
    "gloo_calls",
    "neighbour_exchange",
    "neighbour_exchange_bidir",
    "one_batch",
]

Pair = tuple[Tensor, Tensor]
Post = Callable[[list[Tensor], int, int], Work]


def neighbour_exchange_bidir(left: int, right: int, to_left: Tensor, to_right: Tensor) -> Pair:
    """Exchange with both neighbours as the function that people copy does.

    Its habits are kept: new zeroed tensors at every call, one batch of four operations, sends to
    the right and left, then receives from the right and left, no tags. (So on two ranks the two
    sides come back swapped; the bytes moved are the same.)

    Returns:
        ``(from_right, from_left)``
    """
    from_left, from_right = torch.zeros_like(to_right), torch.zeros_like(to_left)
    _run_batch(
        [
            dist.P2POp(dist.isend, to_right, right),
            dist.P2POp(dist.isend, to_left, left),
            dist.P2POp(dist.irecv, from_right, right),
            dist.P2POp(dist.irecv, from_left, left),
        ]
    )
    return from_right, from_left


def neighbour_exchange(source: int, destination: int, tensor: Tensor) -> Tensor:
    """Send to one neighbour and receive from another as the function that people copy does."""
    received = torch.zeros_like(tensor)
    _run_batch(
        [
            dist.P2POp(dist.isend, tensor, destination),
            dist.P2POp(dist.irecv, received, source),
        ]
    )
    return received


class Neighbour(torch.autograd.Function):
    """The same with its gradient: which goes back."""

    @staticmethod
    def forward(ctx: FunctionCtx, source: int, destination: int, tensor: Tensor) -> Tensor:
        """Exchange."""
        ctx.way = source, destination  # type: ignore[attr-defined]
        return neighbour_exchange(source, destination, tensor)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[None, None, Tensor]:
        """Exchange the gradient the other way."""
        source, destination = ctx.way  # type: ignore[attr-defined]
        return None, None, neighbour_exchange(destination, source, grads[0])


def one_batch(
    left: int, right: int, to_left: Sequence[Tensor], to_right: Sequence[Tensor]
) -> list[Pair]:
    """Exchange many tensors in a single batch: what a careful user writes instead of a loop."""
    received: list[Pair] = []
    operations: list[dist.P2POp] = []
    for leftward, rightward in zip(to_left, to_right, strict=True):
        from_left, from_right = torch.zeros_like(rightward), torch.zeros_like(leftward)
        received.append((from_right, from_left))
        operations += [
            dist.P2POp(dist.isend, rightward, right),
            dist.P2POp(dist.isend, leftward, left),
            dist.P2POp(dist.irecv, from_right, right),
            dist.P2POp(dist.irecv, from_left, left),
        ]
    _run_batch(operations)
    return received


def gloo_calls() -> tuple[Post, Post]:
    """Return ``send`` and ``recv`` of the default group's backend."""
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    return backend.send, backend.recv  # type: ignore[attr-defined]  # not in torch's stubs


def bare_calls(
    calls: tuple[Post, Post], peer: int, to_left: Tensor, to_right: Tensor
) -> Callable[[], Pair]:
    """Return an exchange of two ranks by bare calls: the floor of what is possible.

    Receive buffers are kept, and tags keep the two sides apart.

    Args:
        calls: ``send`` and ``recv``.
        peer: The other rank.
        to_left: For it, as the left neighbour.
        to_right: For it, as the right neighbour.
    """
    send, recv = calls
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    limit = timedelta(seconds=60)

    def exchange() -> Pair:
        works = (
            recv([from_right], peer, 0),
            recv([from_left], peer, 1),
            send([to_left], peer, 0),
            send([to_right], peer, 1),
        )
        for work in works:
            work.wait(limit)
        return from_right, from_left

    return exchange


def _run_batch(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations):
        work.wait()
