"""Memory that a sender shares with one receiver, in slots."""

from __future__ import annotations

import ctypes
import mmap
import os

from .frame import SAME_VERSION

__all__ = ["AT_ONCE", "SLOT", "SLOTS", "Arena", "address_of", "new_memory"]

SLOT = 1 << 20
"""Bytes of a slot: some hundred microseconds of copying, against ten to announce it."""

AT_ONCE = 4
"""Slots that are announced, or given back, together: each time costs as much as to copy a tenth."""

SLOTS = 64
"""What may be on its way from one rank to another without either of them waiting."""


class Arena:
    """Slots of shared memory; what is never touched is never allocated.

    Args:
        descriptor: Of the memory, which is taken over.

    Raises:
        ConnectionError: It has another size than :func:`new_memory` gives it.
    """

    def __init__(self, descriptor: int) -> None:
        try:
            if os.fstat(descriptor).st_size != SLOT * SLOTS:
                raise ConnectionError("shared memory of another size than expected")
            self._memory = mmap.mmap(descriptor, SLOT * SLOTS)
        finally:
            os.close(descriptor)
        self._address = address_of(self._memory)

    def address(self, slot: int) -> int:
        """Return where a slot begins in this process."""
        if not 0 <= slot < SLOTS:
            raise RuntimeError(f"there is no slot {slot} in shared memory; {SAME_VERSION}")
        return self._address + slot * SLOT


def new_memory() -> int:
    """Return the descriptor of memory for an :class:`Arena`."""
    descriptor = os.memfd_create("collectives")
    os.ftruncate(descriptor, SLOT * SLOTS)
    return descriptor


def address_of(buffer: bytearray | mmap.mmap) -> int:
    """Return where a writable buffer lies, for as long as somebody holds it."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
