"""What a process finds around itself, as values: checks and screens read nothing else."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Interface", "Lookup", "Port", "Snapshot", "Torch"]


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface.

    Args:
        name: As in ``GLOO_SOCKET_IFNAME``.
        addresses: IPv4 first, without link-local ones.
        up: It is switched on.
    """

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True

    @property
    def loopback(self) -> bool:
        """Whether only this host is behind it."""
        return self.name in ("lo", "lo0")

    @property
    def virtual(self) -> bool:
        """Whether its name is that of a bridge to containers or machines on this host alone."""
        return self.name.startswith(("docker", "br-", "veth", "virbr", "cni", "flannel", "podman"))


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the resolver says of a name, and of the first of its addresses.

    Args:
        name: That was looked up.
        addresses: Of it; () where there is none.
        seconds: That the answer took.
        error: Why there is no answer.
        back: The name of the first address.
        back_seconds: That this answer took.
    """

    name: str
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""
    back: str = ""
    back_seconds: float = 0.0

    @property
    def loopback(self) -> str:
        """The first address that leads to this host itself, wherever it is asked; or ""."""
        plain = ((address, address.partition("%")[0]) for address in self.addresses)  # fe80::1%eth0
        return next((address for address, ip in plain if ipaddress.ip_address(ip).is_loopback), "")


@dataclass(frozen=True, slots=True)
class Port:
    """What is behind ``MASTER_PORT``.

    Args:
        number: As in the variable.
        state: On rank 0's host "free", "taken", or "not allowed"; "not tried" where an agent holds
            the store, the number is none, or the system has another reason. From elsewhere
            "answers" or "silent".
        error: Why, in the system's words.
    """

    number: str
    state: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """How torch was built.

    Args:
        version: With its build, ``2.13.0+cpu``.
        backends: Of ``torch.distributed``, in alphabetical order.
        cuda: Version it was built for; "" for none.
        accelerator: Kind that it can use here, such as "cuda"; "" for none.
        devices: Names of the accelerators that this process sees.
    """

    version: str
    backends: tuple[str, ...] = ("gloo",)
    cuda: str = ""
    accelerator: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that is looked at.

    Args:
        host: Its name.
        platform: Operating system and machine.
        python: Version.
        environ: The variables of the process.
        packages: Versions of distributions that matter, by name; what is not installed is not in.
        adapters: What hides the package ``adapters`` of this distribution; "" where nothing does.
        torch: How it was built, and what it sees.
        gpus: Names of the GPUs that the driver has.
        links: How pairs of GPUs are connected, ``{"NV18": 28}``.
        cores: That this process may use.
        host_cores: That the host has.
        load: Processes of the host that ran or could have run, over the last minute.
        interfaces: In the order of the system.
        name: The host's own name, looked up.
        master: ``MASTER_ADDR``, looked up; ``None`` where it is not set.
        port: ``MASTER_PORT``; ``None`` where it is not set.
        shared_memory: (free, all) bytes of /dev/shm; ``None`` where there is none.
        open_files: Limit of this process; ``None`` where there is none.
        locked_memory: Limit in bytes; ``None`` where there is none.
        infiniband: There are InfiniBand or RoCE adapters.
        folder: Why the folder in which ranks of this host meet cannot be used; "" where it can.
        has_doors: Ranks of this host can reach each other past gloo.
        settings: What the variables of this library say wrongly, as its errors say it.
    """

    host: str = "here"
    platform: str = "Linux x86_64"
    python: str = "3.12.0"
    environ: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    adapters: str = ""
    torch: Torch = Torch("2.13.0")
    gpus: tuple[str, ...] = ()
    links: Mapping[str, int] = field(default_factory=dict)
    cores: int = 8
    host_cores: int = 8
    load: float = 0.0
    interfaces: tuple[Interface, ...] = ()
    name: Lookup = Lookup("here", ("10.0.0.1",))
    master: Lookup | None = None
    port: Port | None = None
    shared_memory: tuple[int, int] | None = None
    open_files: int | None = None
    locked_memory: int | None = None
    infiniband: bool = False
    folder: str = ""
    has_doors: bool = True
    settings: tuple[str, ...] = ()

    @property
    def addresses(self) -> frozenset[str]:
        """Those of all interfaces."""
        return frozenset(address for one in self.interfaces for address in one.addresses)
