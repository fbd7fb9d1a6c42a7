"""What goes through a socket: a head, and after it the payload where that is short.

A head is 16 bytes: where the payload lies, the tag, and the bytes of the whole message. It lies in
a slot of shared memory, in the socket right behind the head (:data:`INLINE`), or there is none: the
head says that a receive of that tag has been posted (:data:`POSTED`). A message of more than a slot
has a head for each part, in order and with no other message in between. In the other direction of
the socket go the numbers of slots that have been read, a byte each.
"""

from __future__ import annotations

import ctypes
import struct

__all__ = ["HEAD", "INLINE", "POSTED", "SAME_VERSION", "SHORT", "memory_of"]

HEAD = struct.Struct("<iIQ")
INLINE, POSTED = -1, -2

SAME_VERSION = "install one version of torch-collectives on all ranks"
"""What to do about frames that are not as they should be."""

SHORT = 4 * 1024
"""Bytes up to which a payload goes through the socket itself.

It takes 64 of them where the system gives sockets no more room than Linux does by default (208
KiB), and copies of a longer one cost as much as those into shared memory.
"""


def memory_of(address: int, size: int) -> memoryview:
    """Return memory of a tensor or an arena, which somebody must hold meanwhile."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
