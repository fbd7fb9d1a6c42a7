"""Memory of large results that nobody has any more, to receive into again.

Fresh memory costs a page fault for every 4 KiB: at 64 MiB that is half of the time of an exchange.
In a loop (``block = exchange.shift(block)``) the block before last is free by then. That it is can
be known: its storage is referred to from here alone. So results stay new tensors, as far as anyone
can see; whoever holds one, a view, a numpy array or a graph that saved it, holds its storage.

Only for CPU memory: elsewhere torch's caching allocator does this.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from .messages import Leaf

__all__ = ["WORTH_IT", "Recycling"]

WORTH_IT = 1024 * 1024  # bytes: below, the allocator has the pages at hand
_MANY = 4  # an exchange with both neighbours, while the results of the last one are in use
_MOST = 256 * 1024 * 1024  # bytes that are kept

# How often torch refers to a storage; without it nothing is used again.
_uses: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Recycling:
    """The storages of the last large results of a group."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []

    def empty(self, leaf: Leaf) -> Tensor:
        """Return a tensor that nobody else has, not initialised, on the CPU."""
        for place in reversed(range(len(self._storages))):  # caches know the last best
            if self._free(place, leaf.nbytes):
                self._storages.append(self._storages.pop(place))
                tensor = torch.empty(0, dtype=leaf.dtype, device="cpu")
                return tensor.set_(self._storages[-1], 0, leaf.shape)  # type: ignore[call-overload, no-any-return]
        tensor = torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu")
        self._keep(tensor.untyped_storage())
        return tensor

    def _free(self, place: int, nbytes: int) -> bool:
        """Whether a storage has that size, and no tensor, nor code, nor other process has it."""
        storage = self._storages[place]
        if storage.nbytes() != nbytes or _uses is None or _uses(storage._cdata) != 1:
            return False
        if storage.is_shared():
            return False
        del storage
        return _references(self._storages, place) == _ALONE

    def _keep(self, storage: torch.UntypedStorage) -> None:
        if _uses is None:
            return
        kept = [*self._storages[1 - _MANY :], storage]
        while sum(s.nbytes() for s in kept) > _MOST:
            kept.pop(0)
        self._storages = kept


def _references(storages: list[torch.UntypedStorage], place: int) -> int:
    return sys.getrefcount(storages[place])


_ALONE = _references([torch.UntypedStorage(0)], 0)  # differs between versions of Python
