"""What the doctor finds: what is wrong, what to do, and where it has been seen before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Severity", "sorted_by_severity", "without_echoes"]

Severity = Literal["problem", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or will be.

    Args:
        severity: A "problem" keeps ranks from starting or exchanging; a "warning" may.
        title: What is wrong, in a line.
        remedy: What to do, beginning with a verb.
        detail: What comes of it; "" where the title says it all.
        see: Public reports of the same, or documentation.
        ranks: That have it; () where there is one process only.
        topic: The name in the catalogue of known texts of the error that comes of it; "" for none.
        kind: The name of the check; "" for what no check has found.
    """

    severity: Severity
    title: str
    remedy: str
    detail: str = ""
    see: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    topic: str = ""
    kind: str = ""


def sorted_by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the problems first, each kind in its order."""
    return sorted(findings, key=lambda finding: finding.severity != "problem")


def without_echoes(findings: Iterable[Finding], errors: Iterable[Finding]) -> list[Finding]:
    """Return the findings, and those errors that do not just come of one of them.

    Args:
        findings: Of checks.
        errors: Of what was tried, recognised by their texts.
    """
    found = list(findings)
    topics = {one.topic for one in found if one.topic and one.severity == "problem"}
    return sorted_by_severity([*found, *(one for one in errors if one.topic not in topics)])
