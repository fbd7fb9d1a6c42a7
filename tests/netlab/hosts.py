"""Several hosts on one machine: network namespaces, joined by a switch that is one as well.

Needs Linux, root, and ``ip`` and ``tc`` of iproute2. Nothing outside of the namespaces is touched,
and all of them have the same addresses, so that runs side by side do not meet.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Literal

__all__ = ["INTERFACE", "Hosts", "HostsError", "enter_host"]

INTERFACE = "eth0"  # of every host

_PREFIX = "collectives"
_LIMIT = 20.0  # seconds for one command
_NETNS = Path("/run/netns")
_CLONE_NEWNET = 0x40000000

_numbers = itertools.count()

End = Literal["host", "switch"]


class HostsError(RuntimeError):
    """This machine cannot do it: what is missing, or what a command said."""


class Hosts:
    """Hosts and the switch between them, until the end of the block.

    Args:
        count: Number of hosts.

    Raises:
        HostsError: This machine cannot make them.
    """

    def __init__(self, count: int) -> None:
        _check_tools()
        _remove_leftovers()
        stem = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.names = tuple(f"{stem}-{host}" for host in range(count))
        self._switch = f"{stem}-switch"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def address(self, host: int) -> str:
        """Return the address that the others reach it by."""
        return f"10.77.0.{host + 1}"

    def cut(self, host: int, end: End = "switch") -> None:
        """Cut its cable: at the switch, or by taking down the host's own interface."""
        self._set_link(host, end, "down")

    def mend(self, host: int, end: End = "switch") -> None:
        """Undo :meth:`cut`."""
        self._set_link(host, end, "up")

    def lose(self, host: int, share: float) -> None:
        """Lose that share of all packets which reach the host, each by chance.

        Raises:
            HostsError: The kernel has no filters for it.
        """
        # Load a random number; below the limit: 2, drop; else: 0, let it pass.
        limit = int(share * 2**32)
        program = f"4,32 0 0 4294963256,53 1 0 {limit},6 0 0 2,6 0 0 0"
        self._tc(host, "qdisc", "add", "dev", INTERFACE, "clsact")
        self._tc(host, *f"filter add dev {INTERFACE} ingress bpf da bytecode".split(), program)

    def lost(self, host: int) -> int:
        """Return how many packets were lost on purpose."""
        found = json.loads(self._tc(host, "-s", "-j", "qdisc", "show", "dev", INTERFACE))
        return sum(int(one["drops"]) for one in found if one["kind"] == "clsact")

    def close(self) -> None:
        """End all processes in the hosts, and remove these. Idempotent."""
        for name in (*self.names, self._switch):
            _remove(name)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip(*f"-n {self._switch} link add bridge type bridge".split())
        _ip(*f"-n {self._switch} link set bridge up".split())
        for host, name in enumerate(self.names):
            port = f"port{host}"
            _ip("netns", "add", name)
            _ip(
                *f"link add {INTERFACE} netns {name} type veth".split(),
                *f"peer name {port} netns {self._switch}".split(),
            )
            _ip(*f"-n {self._switch} link set {port} master bridge up".split())
            _ip(*f"-n {name} addr add {self.address(host)}/24 dev {INTERFACE}".split())
            _ip(*f"-n {name} link set {INTERFACE} up".split())
            _ip(*f"-n {name} link set lo up".split())

    def _set_link(self, host: int, end: End, state: str) -> None:
        if end == "host":
            _ip(*f"-n {self.names[host]} link set {INTERFACE} {state}".split())
        else:
            _ip(*f"-n {self._switch} link set port{host} {state}".split())

    def _tc(self, host: int, *arguments: str) -> str:
        return _run("tc", "-n", self.names[host], *arguments)


def enter_host(name: str) -> None:
    """Move the calling thread, and all threads and processes that it starts, into a host."""
    with (_NETNS / name).open() as place:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(place.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {name}")


def _check_tools() -> None:
    if not sys.platform.startswith("linux"):
        raise HostsError(f"network namespaces exist on Linux only, not on {sys.platform}")
    if os.geteuid() != 0:
        raise HostsError("only root can make network namespaces")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise HostsError(f"there is no {tool!r} command; it comes with iproute2")


def _remove_leftovers() -> None:
    """Remove what a run left behind that was killed."""
    for line in _ip("netns", "list").splitlines():
        found = re.match(rf"{_PREFIX}-(\d+)-\d+-", line)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            _remove(line.split()[0])


def _remove(name: str) -> None:
    """End what runs in a namespace, all of it started by us, and remove it."""
    with contextlib.suppress(HostsError):  # it does not exist
        for process in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
