"""What a snapshot says is wrong: pure functions, each from a snapshot to findings.

``launch``    what launchers have set, and what is missing
``address``   where the ranks are to meet
``network``   over which interface they will talk
``software``  torch, Lightning, and what is installed beside them
``host``      memory, files and devices
``ranks``     what the ranks of a job find differently
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..findings import Finding, sorted_by_severity
from ..snapshot import Snapshot
from . import address, host, launch, network, software
from .ranks import differences as differences

__all__ = ["CHECKS", "check", "differences"]

CHECKS: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    *software.CHECKS,
    *launch.CHECKS,
    *address.CHECKS,
    *network.CHECKS,
    *host.CHECKS,
)


def check(snapshot: Snapshot) -> list[Finding]:
    """Return all that is wrong, problems first."""
    return sorted_by_severity(
        replace(finding, kind=one.__name__) for one in CHECKS for finding in one(snapshot)
    )
