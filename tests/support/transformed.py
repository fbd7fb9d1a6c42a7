"""Inputs and results of torch.func transforms."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["of", "tensor"]


def of(rank: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def tensor(found: object) -> Tensor:
    """The transforms of torch.func are typed as giving anything."""
    assert isinstance(found, Tensor)
    return found
