"""What a run was asked to do, what it shows while it trains, and what it leaves behind."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from .digits import CHANCE, SIZES
from .siglip import SigLIP, retrieval

__all__ = ["Options", "Record", "RecordError", "Recorder", "begin_run", "load_records"]


@dataclass(frozen=True)
class Options:
    """The command line of the runs.

    The dtype is that of the model and of the data. The runtimes keep their precision "32-true",
    which leaves both alone; Fabric's "64-true" would hand the features back in float32.

    Args:
        ranks: Processes to start; a script under torchrun has them already.
        steps: Of the optimizer.
        dtype: Of parameters and pixels.
        accelerator: As Lightning names it; "auto" takes a GPU where there is one.
        record: Folder for what each rank leaves behind; ``None`` keeps nothing.
    """

    ranks: int
    steps: int
    dtype: torch.dtype
    accelerator: str
    record: Path | None


def begin_run(description: str | None) -> Options:
    """Read the command line of one run, and prepare its process."""
    # The model is small: on a busy machine more threads only wait for each other (20 times slower).
    # Torch reads the variable at its import alone, Lightning before it sets a number of its own.
    torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--ranks", type=int, default=2, choices=SIZES, help="processes to start (default: 2)"
    )
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps (default: 150)")
    parser.add_argument("--precision", type=int, choices=(32, 64), default=32, help="bits")
    parser.add_argument("--accelerator", default="auto", help='"cpu", "gpu" or "auto" (default)')
    parser.add_argument("--record", type=Path, help="folder for the losses and parameters")
    given = parser.parse_args()
    dtype = torch.float64 if given.precision == 64 else torch.float32
    return Options(given.ranks, given.steps, dtype, given.accelerator, given.record)


class RecordError(RuntimeError):
    """A run did not leave behind what it should have."""


@dataclass(frozen=True)
class Record:
    """What one rank of a run leaves behind.

    Args:
        run: Which run.
        rank: Which rank.
        size: Of how many.
        losses: The rank's own loss at every step.
        accuracy: Retrieval on held-out pictures, after the last step, from 0 to 1.
        seconds: From before the first step to after the last.
        bytes_sent: By this rank's exchange.
        parameters: After the last step, on the CPU.
    """

    run: str
    rank: int
    size: int
    losses: list[float]
    accuracy: float
    seconds: float
    bytes_sent: int
    parameters: dict[str, Tensor]

    def save(self, folder: Path) -> None:
        """Write the record into ``folder``."""
        torch.save(asdict(self), folder / f"{self.run}-{self.rank}.pt")


def load_records(folder: Path, run: str, *, size: int, steps: int) -> list[Record]:
    """Return the records of all ranks of ``run``, in their order.

    Args:
        folder: Where the ranks left them.
        run: Which run.
        size: Ranks that it should have had, all in one ring.
        steps: That each should have made.

    Raises:
        RecordError: A rank or a step is missing.
    """
    found = [Record(**torch.load(path, weights_only=True)) for path in folder.glob(f"{run}-*.pt")]
    records = sorted(found, key=lambda record: record.rank)
    got = [(record.rank, record.size, len(record.losses)) for record in records]
    expected = [(rank, size, steps) for rank in range(size)]
    if got != expected:
        raise RecordError(
            f"{run}: its records are not complete: expected (rank, size, steps) = {expected},"
            f" got {got}"
        )
    return records


class Recorder:
    """Follows the training of one rank; rank 0 shows a progress bar, or lines where none fits.

    Args:
        run: Name of the run.
        options: Of the run.
        rank: Of this process.
        size: Of the ring.
    """

    def __init__(self, run: str, options: Options, *, rank: int, size: int) -> None:
        self._run, self._options, self._rank, self._size = run, options, rank, size
        self._losses: list[float] = []
        self._console = Console(quiet=rank != 0, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self._console,
            transient=True,
            disable=rank != 0 or not self._console.is_terminal,
        )
        self._task = self._progress.add_task(run, total=options.steps, loss="")
        self._progress.start()
        self._start = time.perf_counter()

    def step(self, loss: Tensor) -> None:
        """Note the rank's loss of one step."""
        self._losses.append(loss.item())
        self._progress.update(self._task, advance=1, loss=f"loss {self._losses[-1]:.3f}")
        done, total = len(self._losses), self._options.steps
        if self._progress.disable and done * 4 // total > (done - 1) * 4 // total:
            self._console.print(
                f"  {self._run}: step {done}/{total}, loss of rank 0: {self._losses[-1]:.3f}"
            )

    def finish(self, model: SigLIP, *, bytes_sent: float = 0) -> None:
        """Save the record where the options ask for one; rank 0 prints a line."""
        seconds = time.perf_counter() - self._start
        self._progress.stop()
        record = Record(
            run=self._run,
            rank=self._rank,
            size=self._size,
            losses=self._losses,
            accuracy=retrieval(model),
            seconds=seconds,
            bytes_sent=int(bytes_sent),
            parameters={name: value.cpu() for name, value in model.state_dict().items()},
        )
        if self._options.record is not None:
            record.save(self._options.record)
        self._console.print(
            f"  {self._run}: {len(self._losses)} steps in {seconds:.1f} s on {self._size} rank(s);"
            f" rank 0: loss {self._losses[0]:.3f} -> {self._losses[-1]:.3f},"
            f" retrieval {record.accuracy:.1%} (chance {CHANCE:.0%}),"
            f" sent {bytes_sent / 1e6:.2f} MB"
        )
