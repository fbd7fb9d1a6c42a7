"""Train one image-text model in three runtimes and in one process, and compare every step.

Run: ``python -m examples.demo`` or ``make demo``; RANKS=1, 3, 5 and PRECISION=32 in the
environment, or the options of ``--help``. Ends with exit code 1 if the runs disagree.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from .digits import BATCH, CHANCE, SIZES
from .launch import JOBS, LaunchError, launch
from .plot import plot_losses
from .record import Record, RecordError, load_records
from .verdict import TOLERANCE, deviations, faults, global_losses, parameter_deviation

__all__ = ["Demo", "conclude", "main"]

REFERENCE = JOBS[0].title


@dataclass(frozen=True)
class Demo:
    """What to run and how to judge it.

    Args:
        ranks: Processes of each runtime.
        precision: 64, or 32 as users would train.
        steps: Of the optimizer; fewer than 50 are too few to have learned.
        timeout: Seconds for each run, start-up included.
        output: Folder for the plot.
    """

    ranks: int
    precision: int
    steps: int
    timeout: float
    output: Path

    @property
    def tolerance(self) -> float:
        """How far apart two runs may be."""
        return TOLERANCE[torch.float64 if self.precision == 64 else torch.float32]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    demo = _parse(arguments)
    console = Console(soft_wrap=True)
    console.print(
        f"[bold]{demo.steps} steps of {BATCH} pictures and captions on {demo.ranks} rank(s),"
        f" {BATCH // demo.ranks} on each, float{demo.precision}, on the CPU"
    )
    try:
        runs, seconds = _run(demo, console)
    except (LaunchError, RecordError) as error:
        console.print(f"[bold red]{error}")
        return 1
    console.print(_table(runs, seconds))
    path = plot_losses(runs, reference=REFERENCE, tolerance=demo.tolerance, folder=demo.output)
    console.print(f"Loss curves: {path}")
    return conclude(runs, tolerance=demo.tolerance, console=console)


def conclude(runs: Mapping[str, Sequence[Record]], *, tolerance: float, console: Console) -> int:
    """Say whether the runs agree and learned; return the exit code, 1 where not."""
    found = faults(runs, reference=REFERENCE, tolerance=tolerance)
    for fault in found:
        console.print(f"[bold red]FAILED[/] {fault}")
    if found:
        return 1
    steps = len(runs[REFERENCE][0].losses)
    console.print(
        f"[bold green]All {len(runs)} runs agree[/] within {tolerance:.0e}: the global loss at each"
        f" of {steps} steps and every trained parameter on every rank.",
        highlight=False,
    )
    return 0


def _run(demo: Demo, console: Console) -> tuple[dict[str, list[Record]], dict[str, float]]:
    """Return the records and the seconds of each run, start-up included, by title."""
    runs, seconds = {}, {}
    options = ["--steps", str(demo.steps), "--precision", str(demo.precision)]
    with tempfile.TemporaryDirectory(prefix="collectives-demo-") as folder:
        # On the CPU, since agreement is shown in float64; by themselves the runs take a GPU.
        options += ["--accelerator", "cpu", "--record", folder]
        for number, job in enumerate(JOBS, start=1):
            console.print(f"[bold]({number}/{len(JOBS)}) {job.title}")
            start = time.perf_counter()
            launch(job, ranks=demo.ranks, options=options, timeout=demo.timeout)
            seconds[job.title] = time.perf_counter() - start
            size = 1 if job.title == REFERENCE else demo.ranks
            runs[job.title] = load_records(Path(folder), job.run, size=size, steps=demo.steps)
    return runs, seconds


def _table(runs: Mapping[str, Sequence[Record]], seconds: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE, padding=0)  # 80 columns are enough
    table.add_column("\nrun", no_wrap=True)
    for header in (
        "\nranks",
        "loss\nfirst → last",
        f"retrieval\n(chance {CHANCE:.0%})",
        "MB sent\nby all",
        "seconds\n(start-up)",
        "losses\napart",
        "weights\napart",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    reference = runs[REFERENCE]
    for title, records in runs.items():
        losses = global_losses(records)
        worst = max(parameter_deviation(record, reference[0])[0] for record in records)
        training = max(record.seconds for record in records)
        is_reference = title == REFERENCE
        table.add_row(
            title,
            str(len(records)),
            f"{losses[0]:.2f} → {losses[-1]:.2f}",
            f"{records[0].accuracy:.1%}",
            f"{sum(record.bytes_sent for record in records) / 1e6:.2f}",
            f"{training:.1f} ({seconds[title] - training:.1f})",
            "-" if is_reference else f"{deviations(records, reference).max():.0e}",
            "-" if is_reference else f"{worst:.0e}",
        )
    return table


def _parse(arguments: Sequence[str] | None) -> Demo:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--ranks",
        type=int,
        default=os.environ.get("RANKS") or "2",
        help="processes of each runtime (default: $RANKS or 2)",
    )
    parser.add_argument(
        "--precision",
        type=int,
        default=os.environ.get("PRECISION") or "64",
        help="64 for the comparison, 32 as users would train (default: $PRECISION or 64)",
    )
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps (default: 150)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds for each run (default: 300)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder for the plot"
    )
    demo = Demo(**vars(parser.parse_args(arguments)))
    if demo.ranks not in SIZES:
        sizes = ", ".join(map(str, SIZES))
        parser.error(
            f"RANKS: a batch of {BATCH} does not split evenly: expected one of {sizes},"
            f" got {demo.ranks}"
        )
    if demo.precision not in (32, 64):
        parser.error(f"PRECISION: expected 32 or 64, got {demo.precision}")
    if demo.steps < 1:
        parser.error(f"--steps: expected 1 or more, got {demo.steps}")
    return demo


if __name__ == "__main__":
    raise SystemExit(main())
