"""Over which interface the ranks will talk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...launcher import find_launch
from ..findings import Finding
from ..snapshot import Interface, Snapshot

__all__ = ["CHECKS", "Choice", "gloo_choice", "several_hosts"]

_SLOW = 1.0  # seconds
_FALLBACK = ("vllm-project/vllm#7074", "pytorch/pytorch#74316")

Choice = tuple[str, str]
"""What gloo binds to (interface and address, in words), and why."""


def several_hosts(environ: Mapping[str, str]) -> bool:
    """Return whether the job is known to run on more than one host."""
    counts = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
    if any(environ.get(name, "").isdecimal() and int(environ[name]) > 1 for name in counts):
        return True
    launch = find_launch(environ)
    return launch is not None and launch.node_rank > 0


def gloo_choice(found: Snapshot) -> Choice:
    """Return which address gloo will give to the other ranks, as torch chooses it."""
    chosen = found.environ.get("GLOO_SOCKET_IFNAME", "")
    if chosen:
        of = [one for one in found.interfaces if one.name in chosen.split(",")]
        said = ", ".join(f"{one.name} {' '.join(one.addresses[:1])}".strip() for one in of)
        return said or f"no interface {chosen!r}", "GLOO_SOCKET_IFNAME"
    unknown = not found.addresses
    usable = [a for a in found.name.addresses if unknown or _owner(found, a) is not None]
    if usable:
        owner = _owner(found, usable[0])
        chosen = f"{owner.name} {usable[0]}" if owner else usable[0]
        return chosen, "what the host's name resolves to"
    return "lo 127.0.0.1", "the host's name resolves to no address of this host"


def interface_that_is_none(found: Snapshot) -> Iterator[Finding]:
    """``GLOO_SOCKET_IFNAME`` names no interface that is up and has an address."""
    names = found.environ.get("GLOO_SOCKET_IFNAME", "")
    by_name = {one.name: one for one in found.interfaces}
    for name in filter(None, names.split(",") if by_name else ()):
        one = by_name.get(name)
        if one is not None and one.up and (one.addresses or not found.addresses):
            continue
        wrong = "names no interface of this host" if one is None else "has no address, or is down"
        if name.startswith(("^", "=")) or "." in name:
            wrong = "is no name of an interface (gloo knows neither NCCL's ^ and = nor addresses)"
        yield Finding(
            "problem",
            f"GLOO_SOCKET_IFNAME={names}: {name!r} {wrong}",
            f"set it to one of {_usable(found)}, or leave it out",
            f"gloo says: Unable to find address for: {name}",
            ("aws-samples/aws-do-eks#51", "AMD-AGI/Primus#1063"),
            topic="gloo-interface",
        )


def interface_of_nccl_that_is_none(found: Snapshot) -> Iterator[Finding]:
    """``NCCL_SOCKET_IFNAME`` matches no interface; it is a list of prefixes."""
    value = found.environ.get("NCCL_SOCKET_IFNAME", "")
    names = [one.name for one in found.interfaces]
    parts = [part for part in value.lstrip("^=").split(",") if part]
    exact = value.startswith("=")
    matched = any(name == p if exact else name.startswith(p) for name in names for p in parts)
    if parts and not value.startswith("^") and names and not matched:
        yield Finding(
            "problem",
            f"NCCL_SOCKET_IFNAME={value} matches no interface of this host",
            f"set it to the beginning of one of {_usable(found)}, or leave it out",
            "NCCL says: Bootstrap : no socket interface found",
            ("NVIDIA/nccl#1837", "pytorch/pytorch#29482"),
        )


def name_without_a_usable_address(found: Snapshot) -> Iterator[Finding]:
    """Gloo falls back to the loopback, and several hosts do not find each other there."""
    if found.environ.get("GLOO_SOCKET_IFNAME") or not several_hosts(found.environ):
        return
    name = found.name
    strange = bool(found.addresses) and not any(_owner(found, a) for a in name.addresses)
    if not name.addresses:
        what = f"does not resolve ({name.error})"
    elif name.loopback:
        what = f"resolves to {name.loopback}"
    elif strange:
        what = f"resolves to {name.addresses[0]}, which no interface of this host has"
    else:
        return
    yield Finding(
        "problem",
        f"this host's name, {name.name}, {what}, but the job has several hosts",
        f"set GLOO_SOCKET_IFNAME on every host to the interface by which they reach each other"
        f" (here {_usable(found, outside=True)}), or correct /etc/hosts",
        "gloo gives that address, or the loopback, to the other ranks: connectFullMesh failed,"
        " connection refused, remote=[127.0.0.1].",
        _FALLBACK,
        topic="gloo-full-mesh",
    )


def interface_to_containers(found: Snapshot) -> Iterator[Finding]:
    """The address that gloo would take belongs to a bridge of docker or of virtual machines."""
    if found.environ.get("GLOO_SOCKET_IFNAME"):
        return
    for address in found.name.addresses[:1]:
        owner = _owner(found, address)
        if owner is not None and owner.virtual:
            yield Finding(
                "problem" if several_hosts(found.environ) else "warning",
                f"this host's name, {found.name.name}, resolves to {address}, the address of"
                f" {owner.name}",
                f"set GLOO_SOCKET_IFNAME to one of {_usable(found, outside=True)}",
                "That interface leads to containers or machines on this host only.",
                _FALLBACK,
            )


def first_interface_of_nccl(found: Snapshot) -> Iterator[Finding]:
    """NCCL takes the first interface that is not docker's or the loopback."""
    environ = found.environ
    if "nccl" not in found.torch.backends or not several_hosts(environ):
        return
    outside = [one for one in found.interfaces if one.up and one.addresses and not one.loopback
               and not one.name.startswith("docker")]  # fmt: skip
    if environ.get("NCCL_SOCKET_IFNAME") or not outside or not outside[0].virtual:
        return
    yield Finding(
        "warning",
        f"NCCL would take {outside[0].name}, the first interface, which leads to this host only",
        f"set NCCL_SOCKET_IFNAME to one of {_usable(found, outside=True)}",
        see=("NVIDIA/nccl#913", "NVIDIA/nccl#286"),
    )


def slow_resolver(found: Snapshot) -> Iterator[Finding]:
    """Every connection to torch's store asks for the name of its address."""
    name = found.name
    if name.seconds > _SLOW or name.back_seconds > _SLOW:
        what = "to an address" if name.seconds > _SLOW else "back from its address to a name"
        seconds = max(name.seconds, name.back_seconds)
        yield Finding(
            "warning",
            f"the resolver took {seconds:.1f} s for this host's name, {what}",
            "put the hosts of the job into /etc/hosts, or set RES_OPTIONS='timeout:1 attempts:1'",
            "torch's store looks up the name of every process that connects, and serves nobody"
            " meanwhile.",
            ("pytorch/pytorch#159007",),
        )


def encrypted_transport(found: Snapshot) -> Iterator[Finding]:
    """The wheels of torch have no TLS in gloo."""
    transport = found.environ.get("GLOO_DEVICE_TRANSPORT", "TCP")
    if transport not in ("", "TCP"):
        yield Finding(
            "problem",
            f"GLOO_DEVICE_TRANSPORT={transport} is set",
            "unset it, and keep the traffic to a network that you trust",
            "torch's wheels are built without it: makeDeviceForHostname(): unsupported gloo device",
            topic="gloo-tls",
        )


CHECKS = (
    interface_that_is_none,
    interface_of_nccl_that_is_none,
    name_without_a_usable_address,
    interface_to_containers,
    first_interface_of_nccl,
    slow_resolver,
    encrypted_transport,
)


def _owner(found: Snapshot, address: str) -> Interface | None:
    """Return the interface that has an address; all of 127.0.0.0/8 is the loopback's."""
    if address.startswith("127."):
        return next((one for one in found.interfaces if one.loopback), None)
    return next((one for one in found.interfaces if address in one.addresses), None)


def _usable(found: Snapshot, *, outside: bool = False) -> str:
    """Name the interfaces that one can choose from, real ones first."""
    up = [one for one in found.interfaces if one.up and one.addresses]
    real = [one for one in up if not (one.loopback or one.virtual)]
    chosen = real if outside and real else sorted(up, key=lambda one: one.loopback or one.virtual)
    return ", ".join(f"{one.name} ({one.addresses[0]})" for one in chosen) or "those of this host"
