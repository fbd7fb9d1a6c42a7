"""Two ranks in one timeline: what they compute while blocks travel round the ring.

Each rank trains two steps of a pairwise loss over ``ring_pass`` under ``torch.profiler``; the
traces are merged into one file, with a process for each rank, and drawn.

Run: ``python -m examples.trace``; writes ``demo-output/trace.json`` (for https://ui.perfetto.dev or
``chrome://tracing``) and ``demo-output/trace.png``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, record_function

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

from .launch import on_this_host
from .timeline import Trace, merge, plot_timeline

__all__ = ["main", "pairwise_loss", "record", "work"]

ROWS, FEATURES, STEPS = 512, 1024, 2


def pairwise_loss(exchange: Exchange, mine: Tensor) -> Tensor:
    """Return the sum of a loss over the blocks of all ranks; the next is on its way meanwhile."""
    loss = mine.new_zeros(())
    for source, block in exchange.ring_pass(mine):
        with record_function(f"block of rank {source}"):
            loss = loss + (mine @ block.T).square().mean()
    return exchange.join(loss)


def work(exchange: Exchange, rows: int) -> None:
    """Train one step."""
    generator = torch.Generator().manual_seed(exchange.rank)
    mine = torch.randn(rows, FEATURES, generator=generator, requires_grad=True)
    loss = pairwise_loss(exchange, mine)
    with record_function("backward"):
        loss.backward()


def record(rank: int, ranks: int, rows: int, folder: Path) -> None:
    """Be one rank of the job, and write its trace to ``folder``."""
    torch.set_num_threads(1)
    with RawDDPAdapter(rank=rank, size=ranks, device="cpu") as adapter:
        exchange = Exchange(Ring, adapter, name="texts")
        with profile(activities=[ProfilerActivity.CPU]):  # starts slowly, at another pace on each
            work(exchange, rows)
        exchange.shift(torch.zeros(1))  # so that all begin together
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(STEPS):
                work(exchange, rows)
        seen.export_chrome_trace(str(folder / f"{rank}.json"))


def main(folder: Path, *, ranks: int = 2, rows: int = ROWS) -> Path:
    """Run the job, and write ``trace.json`` and ``trace.png`` into ``folder``.

    Args:
        folder: Made if need be.
        ranks: Processes on this host.
        rows: Of each rank's block.

    Returns:
        The path of the trace.
    """
    os.environ.update(on_this_host(os.environ))
    with TemporaryDirectory() as single:
        spawn(record, (ranks, rows, Path(single)), nprocs=ranks)
        texts = [(Path(single) / f"{rank}.json").read_text() for rank in range(ranks)]
    merged = merge([cast("Trace", json.loads(text)) for text in texts])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trace.json"
    path.write_text(json.dumps(merged))
    print(f"trace: {path}, to be opened in https://ui.perfetto.dev")
    print(f"plot: {plot_timeline(merged, folder)}")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="for both files")
    options = parser.parse_args()
    main(options.folder, ranks=options.ranks)
