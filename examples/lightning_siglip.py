"""The same job as a LightningModule.

Run: ``python -m examples.lightning_siglip --ranks 2``.
"""

from __future__ import annotations

import lightning as L  # noqa: N812 - as Lightning's own documents spell it
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from adapters.lightning import LightningAdapter, exchange_callback
from collectives import Exchange, Ring

from .digits import Batch, Shard
from .quiet import quiet_lightning
from .record import Options, Recorder, begin_run
from .siglip import build_model, build_optimizer, ring_siglip_loss

__all__ = ["SigLIPModule", "train"]


class SigLIPModule(L.LightningModule):
    """Trains with its texts going round the ring of the Trainer's ranks."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.model = build_model(options.dtype)
        self.exchange = Exchange(Ring, LightningAdapter(self))  # before any rank is known

    def on_train_start(self) -> None:
        """Start the record of this rank."""
        rank, size = self.exchange.rank, self.exchange.size
        self.recorder = Recorder("lightning", self.options, rank=rank, size=size)

    def training_step(self, batch: Batch) -> Tensor:
        """Return this rank's loss over the pairs of all ranks."""
        image, text, scale, bias = self.model(batch)
        loss = ring_siglip_loss(self.exchange, image, text, scale, bias)
        self.recorder.step(loss)
        return loss

    def on_train_end(self) -> None:
        """Keep what this rank trained."""
        self.recorder.finish(self.model, bytes_sent=self.exchange.stats()["bytes_sent"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of every run."""
        return build_optimizer(self.model)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the rows of this rank."""
        rank, size = self.exchange.rank, self.exchange.size
        shard = Shard(self.options.steps, rank=rank, size=size, dtype=self.options.dtype)
        return DataLoader(shard, batch_size=None)


def train(options: Options) -> None:
    """Train on ranks that the Trainer starts."""
    module = SigLIPModule(options)
    trainer = L.Trainer(
        accelerator=options.accelerator,
        devices=options.ranks,
        strategy="ddp",
        max_epochs=1,
        use_distributed_sampler=False,  # the shard is this rank's already
        callbacks=[exchange_callback(L.Callback, module.exchange)],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,  # the recorder shows one, the same in every runtime
        logger=False,
    )
    trainer.fit(module)


if __name__ == "__main__":
    quiet_lightning()
    train(begin_run(__doc__))
