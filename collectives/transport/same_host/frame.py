"""What goes through a socket: a head, and after it the payload where that is short.

A head is 16 bytes: the slot where (a part of) the payload lies, or :data:`INLINE`; the tag; and the
bytes of the whole message. A message of more than a slot has a head for each part, in order and
with no other message in between. In the other direction go the numbers of slots that are free
again, a byte each.
"""

from __future__ import annotations

import ctypes
import struct

__all__ = ["HEAD", "INLINE", "SHORT", "memory_of"]

HEAD = struct.Struct("<iIQ")
INLINE = -1

SHORT = 32 * 1024
"""Bytes up to which a payload goes through the socket itself."""


def memory_of(address: int, size: int) -> memoryview:
    """Return memory of a tensor or an arena, which somebody must hold meanwhile."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
