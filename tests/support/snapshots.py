"""Snapshots by hand: a host on which nothing is wrong, and what is changed about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collectives.doctor.checks import check
from collectives.doctor.findings import Finding
from collectives.doctor.snapshot import Interface, Lookup, Port, Snapshot, Torch

__all__ = ["ETH0", "HEALTHY", "LO", "MET", "TORCHRUN", "TWO_HOSTS", "found", "one", "with_environ"]

LO = Interface("lo", ("127.0.0.1", "::1"))
ETH0 = Interface("eth0", ("10.0.0.1",))
HEALTHY = Snapshot(
    packages={"torch": "2.13.0", "torch-collectives": "0.1.0"},
    torch=Torch("2.13.0"),
    interfaces=(LO, ETH0),
    name=Lookup("here", ("10.0.0.1",), back="here"),
    shared_memory=(8 * 2**30, 8 * 2**30),
    open_files=65536,
)
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}
TWO_HOSTS = {**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2"}
MET = {"master": Lookup("localhost", ("127.0.0.1",)), "port": Port("29500", "not tried")}


def with_environ(environ: dict[str, str], **changes: Any) -> Snapshot:
    return replace(HEALTHY, environ=environ, **changes)


def found(environ: dict[str, str] | None = None, **changes: Any) -> list[Finding]:
    """Return what all checks say of a healthy host with these changes."""
    return check(with_environ(environ or {}, **changes))


def one(environ: dict[str, str] | None = None, **changes: Any) -> Finding:
    """Return the one thing that is wrong."""
    (finding,) = found(environ, **changes)
    return finding
