"""The same job as a plain script with DistributedDataParallel.

Run: ``torchrun --nproc-per-node 2 -m examples.torchrun_siglip``, or ``python -m
examples.torchrun_siglip`` for one process.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

from .digits import Shard
from .record import Options, Recorder, begin_run
from .siglip import build_model, build_optimizer, ring_siglip_loss

__all__ = ["train"]


def train(options: Options) -> None:
    """Train on the ranks that torchrun started, or alone."""
    device = None if options.accelerator == "auto" else options.accelerator
    with RawDDPAdapter(device=device) as adapter:
        exchange = Exchange(Ring, adapter)
        model = build_model(options.dtype).to(exchange.device)
        # Started by hand there is one process without a group, which DDP refuses.
        ddp = DistributedDataParallel(model) if exchange.size > 1 else model
        optimizer = build_optimizer(model)
        shard = Shard(options.steps, rank=exchange.rank, size=exchange.size, dtype=options.dtype)
        recorder = Recorder("torchrun", options, rank=exchange.rank, size=exchange.size)
        for batch in DataLoader(shard, batch_size=None):
            image, text, scale, bias = ddp(batch.to(exchange.device))
            loss = ring_siglip_loss(exchange, image, text, scale, bias)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
        recorder.finish(model, bytes_sent=exchange.stats()["bytes_sent"])
        exchange.close()


if __name__ == "__main__":
    train(begin_run(__doc__))
