"""The command line that the benchmarks share."""

from __future__ import annotations

import argparse
from pathlib import Path

from .ranks import become_urgent
from .report import Report, Target

__all__ = ["command_line", "finish", "new_report"]


def command_line(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help="3 rounds, nothing above 1 MiB")
    parser.add_argument("--rounds", type=int, help="rounds of each measurement (default: 7)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all samples there")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser


def new_report(options: argparse.Namespace, targets: tuple[Target, ...]) -> Report:
    """Return a report, and make this process and those that it starts urgent."""
    rounds = options.rounds or (3 if options.quick else 7)
    return Report(targets, rounds=rounds, urgent=become_urgent())


def finish(report: Report, options: argparse.Namespace) -> int:
    """Print the targets, write the samples, and return the exit code."""
    report.print_targets()
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(report.as_json())
    return 1 if options.strict and not report.all_met else 0
