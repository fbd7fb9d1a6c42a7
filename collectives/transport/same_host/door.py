"""Where ranks of one host find each other: a Unix socket that others connect to.

A rank tells its address in the greeting. The first half names the host, as far as sockets and
memory can be shared on it: two ranks with the same one have a way to each other.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .arena import Arena, new_memory

__all__ = ["Door", "Visitor", "same_host"]

_GREETING = struct.Struct("<I16s")  # rank, and the first half of the name of the run
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_ROOM = 1 << 20  # bytes that a socket may hold, as far as the system allows
_PATIENCE = 5.0  # seconds for a greeting that has been sent, or a place in the queue


Visitor = tuple[int, socket.socket, Arena]
"""Which rank came, its socket, and the memory that it shares."""


class Door:
    """A listening socket with an abstract name, which lives as long as it is open.

    ``address`` is what the others must know.

    Raises:
        OSError: This system has no such sockets, or no memory to share.
    """

    def __init__(self) -> None:
        Arena(new_memory())  # to see whether it can be had
        name = secrets.token_hex(8)
        self.address = f"{_host()}:{name}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.listener.bind(_path(name))
            self.listener.listen(4096)
            self.listener.setblocking(False)  # noqa: FBT003 - its signature
        except OSError:
            self.listener.close()
            raise

    @classmethod
    def open(cls) -> Door | None:
        """Return a new door, or None where this system cannot have one."""
        if sys.platform != "linux":
            return None
        with suppress(OSError):
            return cls()
        return None

    def admit(self, run: str) -> Visitor | None:
        """Let in whoever stands at the door; None if it was nobody, or nobody of this run.

        Raises:
            OSError: This process cannot open another socket.
        """
        try:
            line, _ = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                raise
            return None  # nobody, or the door is closed
        try:
            return _greeted(line, run)
        except (OSError, struct.error):
            line.close()
            return None

    @staticmethod
    def visit(address: str, rank: int, run: str) -> tuple[socket.socket, Arena]:
        """Connect to the door of another rank.

        Raises:
            OSError: Nobody is there any more.
        """
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
            line.settimeout(_PATIENCE)
            line.connect(_path(address.partition(":")[2]))
            memory = new_memory()
            greeting = _GREETING.pack(rank, run[:16].encode())
            socket.send_fds(line, [greeting], [memory], socket.MSG_NOSIGNAL)
            arena = Arena(memory)
            line.setblocking(False)  # noqa: FBT003 - its signature
        except OSError:
            line.close()
            raise
        return line, arena

    def close(self) -> None:
        """Let nobody in any more."""
        self.listener.close()


def same_host(one: str, other: str) -> bool:
    """Whether two addresses are of one host."""
    return bool(one) and one.partition(":")[0] == other.partition(":")[0]


def _greeted(line: socket.socket, run: str) -> Visitor | None:
    """Read who came; any process of the host may knock."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    line.settimeout(_PATIENCE)
    greeting, descriptors, _, _ = socket.recv_fds(line, _GREETING.size, 1)
    try:
        rank, name = _GREETING.unpack(greeting)
        if _CREDENTIALS.unpack(credentials)[1] == os.getuid() and name == run[:16].encode():
            arena = Arena(descriptors.pop())
            line.setblocking(False)  # noqa: FBT003 - its signature
            return rank, line, arena
    except IndexError:
        pass  # it shares no memory
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    line.close()
    return None


def _path(name: str) -> str:
    return f"\0torch-collectives/{name}"


def _host() -> str:
    """Name the host: one kernel, with the namespaces of sockets and of users, and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "user")]  # noqa: PTH116
    return sha256(repr((boot, spaces, os.getuid())).encode()).hexdigest()[:16]
