"""Training loops of frameworks that make the process group by themselves.

``attached.py MODE FOLDER``: every rank writes where it is to ``FOLDER/<rank>.json``, and its
weights after two steps to ``FOLDER/<rank>.pt``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.launched import report

STEPS = 2
RATE = 0.1


def rows(rank: int) -> Tensor:
    """Return the batch of a rank."""
    return torch.arange(12.0).reshape(3, 4) / 12 + rank


def loss_of(mine: Tensor, theirs: Tensor) -> Tensor:
    return (mine * theirs).mean() + mine.square().mean()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(4, 2)


def reference(size: int) -> list[Tensor]:
    """Train in one process what ``size`` ranks train together."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for _ in range(STEPS):
        outs = [net(rows(rank)) for rank in range(size)]
        losses = [loss_of(out, outs[rank - 1]) for rank, out in enumerate(outs)]
        optimizer.zero_grad()
        (torch.stack(losses).sum() / size).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def train(
    net: nn.Module, backward: Callable[[Tensor], None], step: Callable[[], None], folder: Path
) -> None:
    adapter = RawDDPAdapter()
    exchange = Exchange(Ring, adapter, timeout=60)
    for number in range(STEPS):
        exchange.mark_step(number)
        mine = net(rows(exchange.rank).to(exchange.device))
        backward(exchange.join(loss_of(mine, exchange.shift(mine))))
        step()
    report(folder, adapter)
    torch.save([p.detach().cpu() for p in net.parameters()], folder / f"{exchange.rank}.pt")


def accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), RATE))

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    train(net, accelerator.backward, step, folder)
    accelerator.end_training()  # destroys the group


def deepspeed(folder: Path) -> None:
    """With ZeRO stage 1, which shards the state of the optimizer."""
    import deepspeed as ds

    ds.init_distributed("gloo")
    net = model()
    engine, *_ = ds.initialize(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), RATE),
        config={
            "train_micro_batch_size_per_gpu": 3,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,
        },
    )
    train(engine, engine.backward, engine.step, folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"accelerate": accelerate, "deepspeed": deepspeed}[sys.argv[1]](Path(sys.argv[2]))
