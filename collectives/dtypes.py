"""Dtypes that are storage only: torch moves their bytes, but has no kernel to copy or fill them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_memory", "cannot_hold"]

_NAMES = (
    "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2",
    *(f"{kind}{width}" for kind in ("int", "uint") for width in range(1, 8)),
)  # fmt: skip
_STORAGE_ONLY = {getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
_STAND_IN = {1: torch.uint8, 2: torch.int16}  # by bytes


def as_memory(tensor: Tensor) -> Tensor:
    """Return a tensor that torch can copy: itself, or the same memory as plain integers."""
    if tensor.dtype not in _STORAGE_ONLY:
        return tensor
    return tensor.view(_STAND_IN[tensor.dtype.itemsize])


def cannot_hold(dtype: torch.dtype, value: float) -> str:
    """Return why no tensor of ``dtype`` can be filled with ``value``; "" if it can."""
    if dtype in _STORAGE_ONLY:
        return "" if value == 0 else "it is storage only, without numbers"
    try:
        torch.full((), value, dtype=dtype)
    except (RuntimeError, TypeError, OverflowError) as error:
        return str(error)
    return ""
