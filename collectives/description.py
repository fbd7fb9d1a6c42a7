"""Shapes and dtypes as bytes, for ranks that do not know what will arrive.

Two bytes for each tensor (a number for the dtype, the number of dims) and eight for each dim: plain
numbers, each of them checked, so that nothing that arrives is ever run or believed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch

from .header import MOST_DESCRIBED, MOST_LEAVES
from .messages import Leaf

__all__ = ["decode", "encode"]

# The position is what travels: add at the end only.
_NAMES = (
    "float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128",
    "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
    "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7",
    "int1", "int2", "int3", "int4", "int5", "int6", "int7",
)  # fmt: skip
_DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for code, name in enumerate(_NAMES) if hasattr(torch, name)
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LEAF = struct.Struct("<BB")
_MOST_DIMS = 64
_MOST_BYTES = 2**46  # of one tensor, empty dims counted as one: 64 TiB


def encode(leaves: Sequence[Leaf]) -> bytes:
    """Return the description of some tensors.

    Raises:
        ValueError: They cannot be described; says why.
    """
    if len(leaves) > MOST_LEAVES:
        raise ValueError(f"expected at most {MOST_LEAVES} tensors, got {len(leaves)}")
    described = b"".join(map(_encode, leaves))
    if len(described) > MOST_DESCRIBED:
        raise ValueError(
            f"the shapes of {len(leaves)} tensors take {len(described)} bytes, more than"
            f" {MOST_DESCRIBED}"
        )
    return described


def decode(described: bytes, count: int) -> tuple[Leaf, ...]:
    """Return the ``count`` tensors that are described.

    Raises:
        ValueError: It is no description of so many tensors; says why.
    """
    leaves, at = [], 0
    try:
        for _ in range(count):
            code, dims = _LEAF.unpack_from(described, at)
            shape = struct.unpack_from(f"<{dims}Q", described, at + _LEAF.size)
            at += _LEAF.size + 8 * dims
            if code not in _DTYPES:
                raise ValueError(f"this torch has no dtype of number {code}")
            leaf = Leaf(shape, _DTYPES[code])
            _check(leaf)
            leaves.append(leaf)
    except struct.error as error:
        raise ValueError(f"it is too short for {count} tensors") from error
    if at != len(described):
        raise ValueError(f"it is too long for {count} tensors")
    return tuple(leaves)


def _encode(leaf: Leaf) -> bytes:
    if leaf.dtype not in _CODES:
        raise ValueError(f"a tensor of {leaf.dtype} has no description")
    _check(leaf)
    dims = len(leaf.shape)
    return _LEAF.pack(_CODES[leaf.dtype], dims) + struct.pack(f"<{dims}Q", *leaf.shape)


def _check(leaf: Leaf) -> None:
    if len(leaf.shape) > _MOST_DIMS:
        raise ValueError(f"expected at most {_MOST_DIMS} dims, got {len(leaf.shape)}")
    if math.prod(max(n, 1) for n in leaf.shape) * leaf.dtype.itemsize > _MOST_BYTES:
        raise ValueError(f"a tensor of {leaf} is larger than any memory")
