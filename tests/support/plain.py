"""The function that people copy, in its order of posting: the control of several tests."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["neighbour_exchange_bidir"]


def neighbour_exchange_bidir(
    left_rank: int, right_rank: int, to_left: torch.Tensor, to_right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send right, then left; receive from the right, then from the left; no tags."""
    from_left, from_right = torch.zeros_like(to_right), torch.zeros_like(to_left)
    ops = [
        dist.P2POp(dist.isend, to_right, right_rank),
        dist.P2POp(dist.isend, to_left, left_rank),
        dist.P2POp(dist.irecv, from_right, right_rank),
        dist.P2POp(dist.irecv, from_left, left_rank),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return from_right, from_left
