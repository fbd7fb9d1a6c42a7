"""The same job in a Fabric loop.

Run: ``python -m examples.fabric_siglip --ranks 2``.
"""

from __future__ import annotations

from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from adapters.fabric import FabricAdapter
from collectives import Exchange, Ring

from .digits import Shard
from .quiet import quiet_lightning
from .record import Options, Recorder, begin_run
from .siglip import build_model, build_optimizer, ring_siglip_loss

__all__ = ["train"]


def train(options: Options) -> None:
    """Train on ranks that Fabric starts."""
    fabric = Fabric(accelerator=options.accelerator, devices=options.ranks, strategy="ddp")
    fabric.launch()
    exchange = Exchange(Ring, FabricAdapter(fabric))
    module = build_model(options.dtype)
    model, optimizer = fabric.setup(module, build_optimizer(module))
    shard = Shard(options.steps, rank=exchange.rank, size=exchange.size, dtype=options.dtype)
    loader = fabric.setup_dataloaders(
        DataLoader(shard, batch_size=None), use_distributed_sampler=False
    )
    recorder = Recorder("fabric", options, rank=exchange.rank, size=exchange.size)
    for batch in loader:
        image, text, scale, bias = model(batch)
        loss = ring_siglip_loss(exchange, image, text, scale, bias)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        recorder.step(loss)
    recorder.finish(module, bytes_sent=exchange.stats()["bytes_sent"])
    exchange.close()


if __name__ == "__main__":
    quiet_lightning()
    train(begin_run(__doc__))
