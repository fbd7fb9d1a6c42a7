"""Lightning's Trainer and Fabric run on ranks of the pool, as the adapters' tests need."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.environment import pool_environment


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    rows = torch.arange(32.0).reshape(8, 4) / 32
    return DataLoader(TensorDataset(rows), batch_size=2)


def weights_agree(weight: torch.Tensor) -> bool:
    mine = weight.detach().clone()
    dist.broadcast(mine, src=0)
    return torch.equal(mine, weight)


@pytest.mark.ranks(2)
def test_a_trainer_fits_with_ddp_within_a_second() -> None:
    import lightning.pytorch as lightning
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.seen: list[tuple[int, int]] = []

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            self.seen.append((self.global_rank, self.trainer.world_size))
            loss: torch.Tensor = self.layer(batch[0]).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    started = time.process_time()
    model = Model()
    before = model.layer.weight.detach().clone()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        plugins=[pool_environment(ClusterEnvironment)],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader())
    # 8 rows in batches of 2, split over 2 ranks by Lightning's own sampler.
    assert model.seen == [(dist.get_rank(), 2)] * 2
    assert not torch.equal(model.layer.weight, before)
    assert weights_agree(model.layer.weight)
    assert time.process_time() - started < 3  # of CPU: 0.1 s; a launched rank imports for 5 s


@pytest.mark.ranks(2)
def test_fabric_trains_with_ddp_within_a_second() -> None:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

    started = time.process_time()
    environment = pool_environment(ClusterEnvironment)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", plugins=[environment])
    fabric.launch()
    layer = nn.Linear(4, 1)
    before = layer.weight.detach().clone()
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), 0.1))
    for (rows,) in fabric.setup_dataloaders(loader()):
        fabric.backward(model(rows).square().mean())
        optimizer.step()
    assert (fabric.global_rank, fabric.world_size) == (dist.get_rank(), 2)
    assert not torch.equal(layer.weight, before)
    assert weights_agree(layer.weight)
    assert time.process_time() - started < 3
