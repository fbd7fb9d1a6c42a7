"""What one rank tells rank 0: a few facts, its findings, and how its trial ended. As JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from ..errors import ArgumentError
from .findings import Finding

__all__ = ["RankReport", "Trial", "trial_from_json"]

_LONGEST = 2**20  # bytes of a report


@dataclass(frozen=True, slots=True)
class Trial:
    """How an exchange between all ranks went, seen from one of them.

    Args:
        error: Why it failed; "" if it did not.
        joined: Seconds until the group was there.
        small: Seconds that a shift of 4 bytes takes, the median.
        large: Seconds that a shift of 1 MiB takes, the median.
    """

    error: str = ""
    joined: float = 0.0
    small: float = 0.0
    large: float = 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second, in each direction, of a shift of 1 MiB; 0 if unknown."""
        return 2**20 / self.large if self.large else 0.0


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank found.

    Args:
        rank: As its launcher says.
        facts: In words, by name: "host", "device", "torch", ...
        findings: Of its own checks.
        trial: ``None`` before it.
    """

    rank: int
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    trial: Trial | None = None

    def to_json(self) -> str:
        """Return the report as JSON; :meth:`from_json` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankReport:
        """Read a report; nothing in it is trusted to be more than text and numbers.

        Raises:
            ArgumentError: It is none.
        """
        with _refusing(text):
            found = json.loads(text[:_LONGEST])
            trial = found["trial"]
            return cls(
                int(found["rank"]),
                {str(name): str(value) for name, value in found["facts"].items()},
                tuple(_finding(one) for one in found["findings"]),
                None if trial is None else _trial(trial),
            )


def trial_from_json(text: str) -> Trial:
    """Read a trial by itself.

    Raises:
        ArgumentError: It is none.
    """
    with _refusing(text):
        return _trial(json.loads(text[:_LONGEST]))


@contextmanager
def _refusing(text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArgumentError(
            f"doctor: expected what a rank found, got {text[:80]!r}; use one version of"
            " torch-collectives on all ranks"
        ) from error


def _finding(found: Mapping[str, object]) -> Finding:
    see, ranks = found["see"], found["ranks"]
    if not isinstance(see, list) or not isinstance(ranks, list):
        raise TypeError(found)
    return Finding(
        "problem" if found["severity"] == "problem" else "warning",
        str(found["title"]),
        str(found["remedy"]),
        str(found["detail"]),
        tuple(map(str, see)),
        tuple(map(int, ranks)),
        str(found["topic"]),
        str(found["kind"]),
    )


def _trial(found: Mapping[str, object]) -> Trial:
    joined, small, large = (float(str(found[name])) for name in ("joined", "small", "large"))
    return Trial(str(found["error"]), joined, small, large)
