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
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .arena import Arena, new_memory

__all__ = ["Door", "Visitor", "same_host"]

_GREETING = struct.Struct("<I16s")  # rank, and the name of the run
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_ROOM = 1 << 20  # bytes that a socket may hold, as far as the system allows
_PATIENCE = 2.0  # seconds for a place in the queue; a deadline may be passed by 3
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of this process or system


Visitor = tuple[int, socket.socket, Arena]
"""Which rank came, its socket, and the memory that it shares."""


class Door:
    """A listening socket with an abstract name, which lives as long as it is open.

    ``address`` is what the others must know; ``lines`` are its sockets: the one that listens, those
    that have come and not said yet who they are, and those that were let in.

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
        self.lines = [self.listener]
        self.silent: list[socket.socket] = []

    @classmethod
    def open(cls) -> Door | None:
        """Return a new door, or None where this system cannot have one."""
        if sys.platform != "linux":
            return None
        with suppress(OSError):
            return cls()
        return None

    def admit(self, run: str) -> Visitor | None:
        """Let in one of those who stand at the door; None if there is nobody of this run.

        Whoever says nothing keeps nobody waiting: any process may knock, and a rank may be stopped.

        Raises:
            OSError: This process cannot open another file.
        """
        self._accept()
        for line in list(self.silent):
            try:
                visitor = _greeted(line, run)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _FULL:
                    raise
                visitor = None
            self.silent.remove(line)
            if visitor is not None:
                return visitor
            self.lines.remove(line)
            line.close()
        return None

    def _accept(self) -> None:
        """Take in all of this user who have knocked."""
        while True:
            try:
                line, _ = self.listener.accept()
            except OSError as error:
                if error.errno in _FULL:
                    raise
                return  # nobody, or the door is closed
            if _user_of(line) == os.geteuid():
                line.setblocking(False)  # noqa: FBT003 - its signature
                self.lines.append(line)
                self.silent.append(line)
            else:
                line.close()

    @staticmethod
    def visit(address: str, rank: int, run: str) -> tuple[socket.socket, Arena]:
        """Connect to the door of another rank.

        Raises:
            OSError: Nobody is there any more.
        """
        memory = new_memory()  # first: who has connected must not be kept from saying who it is
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
            _connect(line, _path(address.partition(":")[2]))
            greeting = _GREETING.pack(rank, run[:16].encode())
            socket.send_fds(line, [greeting], [memory], socket.MSG_NOSIGNAL)
            line.setblocking(False)  # noqa: FBT003 - its signature
        except OSError:
            line.close()
            os.close(memory)
            raise
        try:
            return line, Arena(memory)
        except OSError:
            line.close()
            raise

    def close(self) -> None:
        """Let nobody in any more."""
        for line in self.lines:
            line.close()


def same_host(one: str, other: str) -> bool:
    """Whether two addresses are of one host."""
    return bool(one) and one.partition(":")[0] == other.partition(":")[0]


def _connect(line: socket.socket, path: str) -> None:
    """Connect to a rank, which may have a long queue at its door.

    Raises:
        OSError: It has ended, the queue does not move, or somebody else has taken its name.
    """
    end = time.monotonic() + _PATIENCE
    line.setblocking(False)  # noqa: FBT003 - its signature
    while True:
        try:
            line.connect(path)
        except BlockingIOError:  # noqa: PERF203 - the queue is full
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            break
    if _user_of(line) != os.geteuid():
        raise ConnectionRefusedError("the door belongs to another user")


def _user_of(line: socket.socket) -> int:
    """Return the user of the process at the other end."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _greeted(line: socket.socket, run: str) -> Visitor | None:
    """Read who has come; None if it is nobody of this run.

    Raises:
        BlockingIOError: It has not said so yet.
        OSError: This process cannot open the memory.
    """
    greeting, descriptors, flags, _ = socket.recv_fds(line, _GREETING.size, 1)
    if not descriptors and flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        rank, name = _GREETING.unpack(greeting)
        if name == run[:16].encode():
            return rank, line, Arena(descriptors.pop())
    except (IndexError, struct.error):
        pass  # it shares no memory, or speaks another language
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def _path(name: str) -> str:
    return f"\0torch-collectives/{name}"


def _host() -> str:
    """Name the host: one kernel, with the namespaces of sockets and of users, and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "user")]  # noqa: PTH116
    return sha256(repr((boot, spaces, os.geteuid())).encode()).hexdigest()[:16]
