"""Play the fault matrix, or the rows with one of some words in their name; print a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import as_completed
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .judge import Verdict
from .matrix import ROWS, SECTIONS
from .row import DEADLINE, SLACK, STALL, Expected, Over, Row
from .stage import Stage

__all__ = ["main"]


def main() -> int:
    """Print the table; return 1 if a row does not hold."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="play rows with one of these in their name only")
    parser.add_argument("--verify", choices=("auto", "off"), default="auto")
    parser.add_argument("--over", choices=("same host", "gloo"), default="same host")
    given = parser.parse_args()
    rows = [row for row in ROWS if not given.words or any(w in row.fault for w in given.words)]
    console = Console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        verdicts = _play(rows, given.verify, given.over, Path(folder), console)
    _print(console, verdicts, given.over)
    failed = [verdict for verdict in verdicts.values() if verdict.complaints]
    for verdict in failed:
        console.print(f"\n{verdict}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(verdicts) - len(failed)} of {len(verdicts)} rows hold; deadline {DEADLINE:g} s,"
        f" stall {STALL:g} s; a row fails {SLACK:g} s after what is allowed;"
        f" {time.monotonic() - began:.0f} s",
        style="dim",
        highlight=False,
    )
    return 1 if failed else 0


def _play(
    rows: list[Row], verify: Literal["auto", "off"], over: Over, folder: Path, console: Console
) -> dict[Row, Verdict]:
    columns = (TextColumn("faults"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    stage = Stage(folder)
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(rows))
            futures = [stage.play(row, verify, over) for row in rows]
            for _ in as_completed(futures):
                progress.advance(task)
        return {row: future.result() for row, future in zip(rows, futures, strict=True)}
    finally:
        stage.close()


def _print(console: Console, verdicts: dict[Row, Verdict], over: Over) -> None:
    table = Table(title=f"Fault matrix, messages over {over}", title_justify="left")
    for name in ("fault", "expected", "on whom"):
        table.add_column(name)
    for name in ("detected after", "allowed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for section, rows in SECTIONS.items():
        played = [verdicts[row] for row in rows if row in verdicts]
        if played:
            table.add_section()
            table.add_row(f"[bold]{section}[/]")
        for verdict in played:
            _add(table, verdict)
    console.print(table)


def _add(table: Table, verdict: Verdict) -> None:
    """Add a line for each kind of thing that is expected, most often one."""
    row = verdict.row
    groups: dict[Expected, list[int]] = {}
    for number, expected in row.judged.items():
        groups.setdefault(expected, []).append(number)
    for i, (expected, numbers) in enumerate(groups.items()):
        detected = verdict.detected_on(numbers) if expected.errors else None
        table.add_row(
            escape(row.fault) if i == 0 else "",
            str(expected),
            _in_words(numbers, row),
            "" if detected is None else f"{detected:.2f} s",
            _allowed(expected),
            ("[green]ok[/]" if not verdict.complaints else "[red]FAILED[/]") if i == 0 else "",
        )


def _allowed(expected: Expected) -> str:
    if not expected.errors:
        return ""
    return f"{expected.within:g} s" if expected.within else "at once"


def _in_words(numbers: list[int], row: Row) -> str:
    if len(numbers) == row.size:
        return f"all {row.size}"
    return ", ".join(map(str, numbers))


if __name__ == "__main__":
    sys.exit(main())
