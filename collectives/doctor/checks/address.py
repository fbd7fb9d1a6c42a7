"""Where the ranks are to meet: ``MASTER_ADDR`` and ``MASTER_PORT``."""

from __future__ import annotations

from collections.abc import Iterator

from ...launcher import find_launch, has_agent_store
from ..findings import Finding
from ..snapshot import Snapshot
from .network import several_hosts

__all__ = ["CHECKS"]

_SLOW = 1.0  # seconds
_ADDRESS = "MASTER_ADDR={!r}"


def address_that_is_no_host(found: Snapshot) -> Iterator[Finding]:
    """``MASTER_ADDR`` does not resolve."""
    if found.master is not None and not found.master.addresses:
        yield Finding(
            "problem",
            f"{_ADDRESS.format(found.master.name)} does not resolve: {found.master.error}",
            "correct it, or give the numeric address of rank 0's host",
            "torch tries again until its timeout, 30 minutes by default.",
            ("pytorch/elastic#31",),
            topic="address-unknown",
        )


def address_of_everybodys_own(found: Snapshot) -> Iterator[Finding]:
    """``MASTER_ADDR`` is a loopback address, but the job has several hosts."""
    master = found.master
    if master is None or not several_hosts(found.environ):
        return
    if master.loopback:
        yield Finding(
            "problem",
            f"{_ADDRESS.format(master.name)} is {master.loopback}, but the job has several hosts",
            "set it to an address of rank 0's host that the other hosts can reach",
            "On every other host this is that host itself.",
            ("pytorch/pytorch#105782",),
        )


def address_of_another_host(found: Snapshot) -> Iterator[Finding]:
    """This is rank 0, and ``MASTER_ADDR`` is none of its addresses."""
    launch, master = find_launch(found.environ), found.master
    if launch is None or launch.rank != 0 or has_agent_store(found.environ):
        return
    if master is None or not master.addresses or master.loopback or not found.addresses:
        return
    if found.addresses.isdisjoint(master.addresses):
        yield Finding(
            "problem",
            f"rank 0 is here, but {_ADDRESS.format(master.name)} is {master.addresses[0]}, which no"
            " interface of this host has",
            "set MASTER_ADDR to an address of this host, or start rank 0 where it points to",
            "The others wait there for a rank 0 that does not come.",
            topic="absent-rank",
        )


def slow_address(found: Snapshot) -> Iterator[Finding]:
    """The resolver takes long for ``MASTER_ADDR``."""
    if found.master is not None and found.master.addresses and found.master.seconds > _SLOW:
        yield Finding(
            "warning",
            f"{_ADDRESS.format(found.master.name)} took {found.master.seconds:.1f} s to resolve",
            "give the numeric address, or put the name into /etc/hosts",
        )


def port_that_is_no_number(found: Snapshot) -> Iterator[Finding]:
    """``MASTER_PORT`` is not a port."""
    if found.port is None:
        return
    text = found.port.number
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        yield Finding(
            "problem",
            f"MASTER_PORT={text!r} is no number from 1 to 65535",
            "set it to a free port, the same on all ranks, or leave it to torchrun",
        )


def port_that_is_taken(found: Snapshot) -> Iterator[Finding]:
    """Another process listens where rank 0 wants to."""
    if found.port is not None and found.port.state == "taken":
        yield Finding(
            "problem",
            f"MASTER_PORT={found.port.number} is in use on this host",
            "leave MASTER_PORT and --master-port out (torchrun finds a free one), choose another,"
            f" or end what listens there (`ss -ltnp 'sport = :{found.port.number}'` names it)",
            "rank 0 would fail: EADDRINUSE, address already in use. Often a job that has not ended,"
            " or two jobs on one host.",
            ("Lightning-AI/pytorch-lightning#2537", "optuna/optuna#1765"),
            topic="address-in-use",
        )


def port_that_is_not_allowed(found: Snapshot) -> Iterator[Finding]:
    """Only root may listen there."""
    if found.port is not None and found.port.state == "not allowed":
        yield Finding(
            "problem",
            f"MASTER_PORT={found.port.number}: this user must not listen there",
            "choose a port from 1024 on",
        )


CHECKS = (
    address_that_is_no_host,
    address_of_everybodys_own,
    address_of_another_host,
    slow_address,
    port_that_is_no_number,
    port_that_is_taken,
    port_that_is_not_allowed,
)
