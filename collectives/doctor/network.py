"""Interfaces, names and ports of this host, each found out within a bound."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import time
from contextlib import closing, suppress
from pathlib import Path

from ..transport.stopwatch import TimeIsUpError, call_bounded
from .snapshot import Interface, Lookup, Port

__all__ = ["find_interfaces", "look_up", "probe_port"]

_PATIENCE = 6.0  # seconds for the resolver: its own first try takes 5
_CONNECT = 1.0
_FLAGS, _ADDRESS = 0x8913, 0x8915  # Linux: SIOCGIFFLAGS, SIOCGIFADDR
_UP = 1
_REFUSALS = {errno.EACCES: "not allowed", errno.EADDRINUSE: "taken"}


def find_interfaces() -> tuple[Interface, ...]:
    """Return the interfaces of this host; on Linux with their addresses."""
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    later = _addresses_of_version_6()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asked:
        return tuple(
            Interface(
                name,
                tuple(filter(None, (_ask_address(asked, name), *later.get(name, ())))),
                up=_is_up(asked, name),
            )
            for name in names
        )


def _ask(asked: socket.socket, name: str, question: int) -> bytes:
    try:
        import fcntl

        return fcntl.ioctl(asked, question, struct.pack("256s", name.encode()[:15]))
    except (ImportError, OSError):  # Windows; no address, or another system's numbers
        return b""


def _ask_address(asked: socket.socket, name: str) -> str:
    answer = _ask(asked, name, _ADDRESS)
    return socket.inet_ntoa(answer[20:24]) if answer else ""


def _is_up(asked: socket.socket, name: str) -> bool:
    answer = _ask(asked, name, _FLAGS)
    return not answer or bool(struct.unpack_from("H", answer, 16)[0] & _UP)


def _addresses_of_version_6() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            address = ipaddress.ip_address(bytes.fromhex(digits))
            if not address.is_link_local:
                found.setdefault(name, []).append(str(address))
    return found


def look_up(name: str) -> Lookup:
    """Ask the resolver for a name, and for the name of its first address."""
    begun = time.monotonic()
    addresses: tuple[str, ...] = ()
    error = ""
    try:
        found = call_bounded(
            lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM), _PATIENCE
        )
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    except TimeIsUpError:
        error = f"no answer within {_PATIENCE:g} s"
    except (OSError, UnicodeError) as failure:
        error = getattr(failure, "strerror", None) or str(failure)
    seconds = time.monotonic() - begun
    if not addresses:
        return Lookup(name, (), seconds, error)
    begun = time.monotonic()
    back = ""
    with suppress(TimeIsUpError, OSError):
        back = call_bounded(lambda: socket.getnameinfo((addresses[0], 0), 0)[0], _PATIENCE)
    return Lookup(name, addresses, seconds, "", back, time.monotonic() - begun)


def probe_port(text: str, host: str | None) -> Port:
    """Say what is behind a port.

    Args:
        text: Its number, as in the variable.
        host: Try to connect to it there; ``None``: try to listen on this host.
    """
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        return Port(text, "not tried")
    if host is not None:
        try:
            # The name is looked up anew, which may take for ever.
            call_bounded(
                lambda: socket.create_connection((host, int(text)), _CONNECT).close(), _PATIENCE
            )
        except TimeIsUpError:
            return Port(text, "silent", f"no answer within {_PATIENCE:g} s")
        except (OSError, UnicodeError) as error:
            return Port(text, "silent", getattr(error, "strerror", None) or str(error))
        return Port(text, "answers")
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        # As torch's store: on all addresses, and again at once after a job that ended.
        socket.create_server(
            ("", int(text)), family=family, dualstack_ipv6=family is socket.AF_INET6
        ).close()
    except OSError as error:
        state = _REFUSALS.get(error.errno or 0, "not tried")  # such as too many open files
        return Port(text, state, error.strerror or str(error))
    return Port(text, "free")
