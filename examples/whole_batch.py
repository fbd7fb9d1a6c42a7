"""The reference: one process, the whole batch, no exchange at all.

Run: ``python -m examples.whole_batch``.
"""

from __future__ import annotations

from torch.utils.data import DataLoader

from .digits import Shard
from .record import Options, Recorder, begin_run
from .siglip import build_model, build_optimizer, pair_loss

__all__ = ["train"]


def train(options: Options) -> None:
    """Train on the CPU with the loss over all pairs at once."""
    model = build_model(options.dtype)
    optimizer = build_optimizer(model)
    shard = Shard(options.steps, rank=0, size=1, dtype=options.dtype)
    recorder = Recorder("whole-batch", options, rank=0, size=1)
    for batch in DataLoader(shard, batch_size=None):
        image, text, scale, bias = model(batch)
        loss = pair_loss(image, text, scale, bias)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.finish(model)


if __name__ == "__main__":
    train(begin_run(__doc__))
