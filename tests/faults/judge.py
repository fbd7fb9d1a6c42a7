"""What came of a row, and whether it is what the row promises."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .row import SLACK, Expected, Row

__all__ = ["Outcome", "Verdict", "judge"]

_LOG_TAIL = 4000


@dataclass(frozen=True)
class Outcome:
    """All that was seen.

    Args:
        ended: Exit codes by process, as :mod:`subprocess` has them; without those that were killed
            in the end.
        events: As the processes told them.
        seconds: That the row took.
        logs: What processes printed last.
    """

    ended: dict[int, int]
    events: tuple[dict[str, Any], ...]
    seconds: float
    logs: dict[int, str]

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Read a director's ``result.json``."""
        result = json.loads(path.read_text())
        logs = {int(f.stem): f.read_text(errors="replace") for f in path.parent.glob("*.log")}
        return cls(
            ended={int(number): code for number, code in result["ended"].items()},
            events=tuple(result["events"]),
            seconds=result["seconds"],
            logs={number: text[-_LOG_TAIL:] for number, text in logs.items()},
        )

    def told(self, kind: str, by: int) -> list[dict[str, Any]]:
        """Return the events of one kind of one process."""
        return [e for e in self.events if e["kind"] == kind and e["by"] == by]

    @property
    def fault_at(self) -> float:
        """When it happened; not a number if it did not."""
        return max((e["at"] for e in self.events if e["kind"] == "fault"), default=math.nan)


@dataclass(frozen=True)
class Verdict:
    """Whether a row holds.

    Args:
        row: Which.
        outcome: What was seen.
        complaints: What is not as expected; empty if the row holds.
    """

    row: Row
    outcome: Outcome
    complaints: tuple[str, ...]

    @property
    def corrupt(self) -> int:
        """How many received tensors had wrong values."""
        return sum(event["kind"] == "corrupt" for event in self.outcome.events)

    def detected_on(self, numbers: Iterable[int]) -> float | None:
        """Return after how long the last of these processes raised; ``None``: none did."""
        errors = [self.outcome.told("error", number)[:1] for number in numbers]
        times = [first["at"] - self.outcome.fault_at for one in errors for first in one]
        return max((t for t in times if not math.isnan(t)), default=None)

    def __str__(self) -> str:
        """Return it for a failed test."""
        lines = [f"{self.row.fault}: {'failed' if self.complaints else 'ok'}"]
        lines += [f"- {complaint}" for complaint in self.complaints]
        shown: set[str] = set()
        for error in (e for e in self.outcome.events if e["kind"] == "error"):
            kind, after = error["classes"][0], error["at"] - self.outcome.fault_at
            when = "" if math.isnan(after) else f" after {after:.2f} s"
            # One text of each kind: the others say nearly the same.
            text = "" if kind in shown else f": {error['text']}"
            lines.append(f"process {error['by']} raised {kind}{when}{text}")
            shown.add(kind)
        return "\n".join(lines)


def judge(row: Row, outcome: Outcome) -> Verdict:
    """Compare what was seen with what is expected, process by process."""
    complaints = [
        f"process {number} {complaint}"
        for number, expected in row.judged.items()
        for complaint in _complaints(outcome, number, expected)
    ]
    return Verdict(row, outcome, tuple(complaints))


def _complaints(outcome: Outcome, number: int, expected: Expected) -> Iterator[str]:
    for event in outcome.told("corrupt", number)[:1]:
        yield f"got wrong values from rank {event['rank']} at step {event['step']}"
    errors = outcome.told("error", number)
    yield from _about_the_error(outcome, errors, expected)
    yield from _about_the_end(outcome, number, _exit_codes(errors, expected))
    for event in outcome.told("end", number):
        if event["threads"] and not expected.may_leave_threads:
            yield f"left threads behind: {', '.join(event['threads'])}"


def _about_the_error(
    outcome: Outcome, errors: list[dict[str, Any]], expected: Expected
) -> Iterator[str]:
    wanted = {error.__name__ for error in expected.errors}
    if not errors:
        if wanted and not expected.or_nothing:
            yield f"raised nothing, expected {expected}"
        return
    error = errors[0]
    kind, text = error["classes"][0], error["text"]
    if not wanted & set(error["classes"]):
        yield f"raised {kind}, expected {expected}"
        return
    missing = [part for part in expected.says if part not in text]
    if missing:
        yield f"raised a {kind} that does not say {' nor '.join(map(repr, missing))}"
    after = error["at"] - outcome.fault_at
    if not after <= expected.within + SLACK:  # nor if it is not a number
        yield f"took {after:.2f} s, expected {expected.within:g} s + {SLACK:g} s"


def _about_the_end(outcome: Outcome, number: int, codes: set[int]) -> Iterator[str]:
    code = outcome.ended.get(number)
    if code is None:
        yield f"did not end:\n{outcome.logs.get(number, '')}"
    elif code not in codes:
        wanted = " or ".join(map(str, sorted(codes)))
        yield f"ended with {code}, expected {wanted}:\n{outcome.logs.get(number, '')}"


def _exit_codes(errors: list[dict[str, Any]], expected: Expected) -> set[int]:
    """Return how a Python program may end after the error that was raised, or without one."""
    if expected.code is not None:
        return {expected.code}
    if not errors:
        return {0}
    return {-2, 130} if errors[0]["classes"][0] == "KeyboardInterrupt" else {1}
