"""Training that goes on after a rank was killed: from the last checkpoint, to the same weights.

Run: ``torchrun --nproc-per-node 2 --max-restarts 1 -m examples.elastic --kill-at 5``. In the first
attempt the last rank kills itself at step 5. The others do not wait for it: they end with an error
that names it, if torchrun has not ended them yet, and torchrun starts all ranks again. Without
``--kill-at`` nothing happens, and the line at the end is the same, digit for digit. On several
hosts the checkpoint must be in a folder that all of them see.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

__all__ = ["main", "train"]

STEPS = 8


def batch_of(step: int, rank: int) -> Tensor:
    """Return what a rank sees at a step, in whichever attempt: so the step must be known anew."""
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + rank))


def train(checkpoint: Path, kill_at: int | None) -> None:
    """Train from the checkpoint, or from the start where there is none yet."""
    with RawDDPAdapter() as adapter:
        exchange = Exchange(Ring, adapter)
        torch.manual_seed(0)
        model = nn.Linear(8, 4).to(exchange.device)
        ddp = DistributedDataParallel(model) if exchange.size > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        start, loss = load(checkpoint, model, optimizer)
        print(f"rank {exchange.rank} of {exchange.size} starts at step {start}", flush=True)
        for step in range(start, STEPS):
            exchange.mark_step(step)
            if step == kill_at and start == 0 and exchange.rank == exchange.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = ddp(batch_of(step, exchange.rank).to(exchange.device))
            loss = exchange.join((mine * exchange.shift(mine)).mean() + mine.square().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if exchange.rank == 0:
                save(checkpoint, model, optimizer, step + 1, loss)
        if exchange.rank == 0:
            weights = sum(p.double().sum() for p in model.parameters())
            print(f"step {STEPS}: loss of rank 0 {loss.item():.9f}, weights {weights:.9f}")


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, loss: Tensor
) -> None:
    """Write a checkpoint that is there at once or not at all: the writer may be killed too."""
    draft = path.with_suffix(".new")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "step": step, "loss": loss.detach()}, draft)
    draft.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, Tensor]:
    """Read the checkpoint on every rank; return the step to go on with, and the loss before it."""
    if not path.exists():
        return 0, torch.zeros(())
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), state["loss"]


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=Path("demo-output/elastic.pt"))
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="lose a rank at this step")
    options = parser.parse_args()
    options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    train(options.checkpoint, options.kill_at)


if __name__ == "__main__":
    main()
