"""The shape of a balanced mesh, as MPI_Dims_create chooses it."""

from __future__ import annotations

import math
from collections.abc import Iterator

__all__ = ["balanced_shape"]


def balanced_shape(size: int, ndim: int) -> tuple[int, ...]:
    """Return ``ndim`` extents whose product is ``size``, as close to each other as possible.

    MPI leaves "close" open. Here it is the smallest difference between the largest and the
    smallest extent, and of those the shape that is first in lexicographic order. Every candidate
    is looked at: handing out the prime factors one by one, largest first, makes 12 x 6 of 72.

    Example:
        >>> balanced_shape(72, 2), balanced_shape(64, 3), balanced_shape(7, 2)
        ((9, 8), (4, 4, 4), (7, 1))

    Source: MPI_Dims_create, with all entries of ``dims`` free.
    """
    return min(
        _factorisations(size, ndim, largest=size),
        key=lambda shape: (shape[0] - shape[-1], shape),
    )


def _factorisations(size: int, ndim: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield the non-increasing ways to write ``size`` as ``ndim`` factors up to ``largest``."""
    if ndim == 1:
        if size <= largest:
            yield (size,)
        return
    for first in _divisors(size):
        # The factors behind are no larger than the first, so it must reach size on its own.
        if first <= largest and first**ndim >= size:
            for rest in _factorisations(size // first, ndim - 1, first):
                yield (first, *rest)


def _divisors(number: int) -> Iterator[int]:
    for low in range(1, math.isqrt(number) + 1):
        if number % low == 0:
            yield low
            if low * low != number:
                yield number // low
