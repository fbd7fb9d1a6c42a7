"""A training that loses a rank and is started again: ``restarted.py RUNTIME FOLDER KILL``.

Lightning and Fabric make the process group by themselves; examples/elastic.py is the plain script.
With ``KILL`` 1, the last rank kills itself once, in the middle of the second epoch. Rank 0 writes
the weights at the end to ``FOLDER/weights.pt``.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from adapters.fabric import FabricAdapter
from adapters.lightning import LightningAdapter
from collectives import Exchange, Ring
from tests.support.attached import loss_of, model

EPOCHS = 3


def batches() -> DataLoader[tuple[Tensor, ...]]:
    """Return 8 batches, which the ranks share."""
    rows = torch.randn(32, 4, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(rows), batch_size=4)


def maybe_die(exchange: Exchange, epoch: int, batch: int, mark: Path) -> None:
    if (epoch, batch) == (1, 1) and exchange.rank == exchange.size - 1 and mark.exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def save_weights(folder: Path, parameters: Any) -> None:
    torch.save([p.detach() for p in parameters], folder / "weights.pt")


class Module(pl.LightningModule):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.net = model()
        self.folder = folder
        self.exchange = Exchange(Ring, LightningAdapter(self), timeout=60)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        maybe_die(self.exchange, self.current_epoch, batch_idx, self.folder / "mark")
        mine = self.net(batch[0])
        return self.exchange.join(loss_of(mine, self.exchange.shift(mine)))

    def on_train_end(self) -> None:
        if self.global_rank == 0:
            save_weights(self.folder, self.net.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def lightning(folder: Path) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        logger=False,
        callbacks=[ModelCheckpoint(folder, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = folder / "last.ckpt"
    trainer.fit(Module(folder), batches(), ckpt_path=last if last.exists() else None)


def fabric(folder: Path) -> None:
    runtime = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime), timeout=60)
    net = model()
    net, optimizer = runtime.setup(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    loader = runtime.setup_dataloaders(batches())
    state: dict[str, Any] = {"net": net, "optimizer": optimizer, "epochs": 0}
    if (folder / "last.ckpt").exists():
        runtime.load(folder / "last.ckpt", state)
    for epoch in range(state["epochs"], EPOCHS):
        for number, (rows,) in enumerate(loader):
            exchange.mark_step(epoch, number)
            maybe_die(exchange, epoch, number, folder / "mark")
            mine = net(rows)
            runtime.backward(exchange.join(loss_of(mine, exchange.shift(mine))))
            optimizer.step()
            optimizer.zero_grad()
        state["epochs"] = epoch + 1
        runtime.save(folder / "last.ckpt", state)
    if runtime.global_rank == 0:
        save_weights(folder, net.parameters())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    where = Path(sys.argv[2])
    where.mkdir(exist_ok=True)
    if sys.argv[3] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        (where / "mark").touch()
    {"lightning": lightning, "fabric": fabric}[sys.argv[1]](where)
