"""Tables for people and JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .contest import Samples, Spread

__all__ = ["Measurement", "Report", "Target"]


@dataclass(frozen=True)
class Measurement:
    """What contestants took, round by round.

    Args:
        key: By which targets find it.
        title: For the table.
        base: The contestant that the others are compared with.
        samples: Seconds per call.
        adds: Compare by what is added to the base, not by how often it is faster.
    """

    key: str
    title: str
    base: str
    samples: Samples
    adds: bool = False

    def against(self, base: str, contestant: str) -> Spread:
        """Compare two contestants, round by round."""
        pairs = zip(self.samples[base], self.samples[contestant], strict=True)
        return Spread.of([b - a if self.adds else a / b for a, b in pairs])

    def in_words(self, spread: Spread) -> str:
        """Return a comparison with its range."""
        return _in_words(spread, seconds_in_words if self.adds else "{:.2f}x".format)


@dataclass(frozen=True)
class Target:
    """What a comparison should show.

    Args:
        text: For the table.
        key: Of the measurement.
        contestant: Whose figure it is.
        base: With whom it is compared.
        limit: At least so many times faster, or at most so many seconds more.
    """

    text: str
    key: str
    contestant: str
    base: str
    limit: float


@dataclass
class Report:
    """Prints each measurement as it comes, and the targets in the end.

    Args:
        targets: To be compared with what is measured.
        rounds: Of each measurement.
        urgent: Whether the processes run with real-time priority.
    """

    targets: tuple[Target, ...]
    rounds: int
    urgent: bool
    measurements: dict[str, Measurement] = field(default_factory=dict)
    claims: dict[str, bool] = field(default_factory=dict)
    _console: Console = field(default_factory=Console)

    def add(self, measurement: Measurement) -> None:
        """Keep and print a measurement."""
        self.measurements[measurement.key] = measurement
        effect = "adds" if measurement.adds else "speed"
        table = Table(
            "",
            "per call, median [low .. high]",
            f"{effect} against {measurement.base}",
            title=measurement.title,
            title_justify="left",
        )
        for name, values in measurement.samples.items():
            compared = measurement.in_words(measurement.against(measurement.base, name))
            table.add_row(
                name,
                escape(_in_words(Spread.of(values), seconds_in_words)),
                "" if name == measurement.base else escape(compared),
                style="dim" if "A/A" in name else "",
            )
        self._console.print(table)

    def claim(self, text: str, *, holds: bool) -> None:
        """Keep a statement that is true or not."""
        self.claims[text] = holds

    def print_targets(self) -> None:
        """Print what was measured beside what is wanted."""
        table = Table("target", "wanted", "measured", "", title="Targets", title_justify="left")
        for target in self.targets:
            measurement = self.measurements.get(target.key)
            if measurement is None:
                continue
            limit = target.limit
            wanted = f"<= {seconds_in_words(limit)}" if measurement.adds else f">= {limit:g}x"
            spread = measurement.against(target.base, target.contestant)
            measured = escape(measurement.in_words(spread))
            table.add_row(target.text, wanted, measured, _verdict(met=self._met(target)))
        for text, holds in self.claims.items():
            table.add_row(text, "", "", _verdict(met=holds))
        self._console.print(table)
        self._console.print(self._conditions(), style="dim", markup=False)

    @property
    def all_met(self) -> bool:
        """Whether every target that was measured is reached."""
        measured = [t for t in self.targets if t.key in self.measurements]
        return all(map(self._met, measured)) and all(self.claims.values())

    def as_json(self) -> str:
        """Return everything that was measured."""
        return json.dumps(
            {
                "time": time.time(),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.platform(),
                "cores": os.cpu_count(),
                "load": os.getloadavg(),
                "real_time_priority": self.urgent,
                "rounds": self.rounds,
                "measurements": [asdict(m) for m in self.measurements.values()],
                "targets": [
                    {**asdict(t), "met": self._met(t)}
                    for t in self.targets
                    if t.key in self.measurements
                ],
                "claims": self.claims,
            },
            indent=1,
        )

    def _met(self, target: Target) -> bool:
        measurement = self.measurements[target.key]
        median = measurement.against(target.base, target.contestant).median
        return median <= target.limit if measurement.adds else median >= target.limit

    def _conditions(self) -> str:
        priority = "with" if self.urgent else "WITHOUT"
        few = "" if self.rounds >= 7 else " Fewer than 7 rounds: a first look, not a result."
        return (
            f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},"
            f" {priority} real-time priority; median over {self.rounds} rounds, compared inside"
            " each round [lowest .. highest]. A/A is the same code twice: what differs less than"
            f" those two is not different.{few}"
        )


def seconds_in_words(seconds: float) -> str:
    """Return a duration in a unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.2f} µs"


def _in_words(spread: Spread, show: Callable[[float], str]) -> str:
    return f"{show(spread.median)} [{show(spread.low)} .. {show(spread.high)}]"


def _verdict(*, met: bool) -> str:
    return "[green]ok[/]" if met else "[yellow]below[/]"
