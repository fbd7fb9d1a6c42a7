"""Decentralised training: each rank steps on its own gradient, then averages with neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.cells import runtimes
from tests.support.nets import Whole, rows_of
from tests.support.recipe import Recipe

pytestmark = pytest.mark.usefixtures("no_launcher")

SIZE, STEPS = 4, 3


def layer() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(4, 1).double()


def loss_of(made: Tensor) -> Tensor:
    return (made - 1).square().mean()


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), 0.1)


def expected() -> Tensor:
    """Return the weights of all ranks, trained in one process and mixed by the mixing matrix."""
    nets = [layer() for _ in range(SIZE)]
    made = [sgd(net) for net in nets]
    mixing = torch.from_numpy(Ring(SIZE).mixing_matrix())
    for number in range(STEPS):
        for net, optimizer, rows in zip(nets, made, rows_of(number, Whole(SIZE)), strict=True):
            optimizer.zero_grad()
            loss_of(net(rows)).backward()
            optimizer.step()
        with torch.no_grad():
            for together in zip(*(net.parameters() for net in nets), strict=True):
                mixed = torch.einsum("rs,s...->r...", mixing, torch.stack(together))
                for parameter, value in zip(together, mixed, strict=True):
                    parameter.copy_(value)
    return torch.stack([net.weight.detach() for net in nets])


def under_lightning() -> Tensor:
    from tests.support.under_lightning import Trained, trainer_for

    class Gossiping(Trained):
        """Steps by hand: the Trainer's DDP would average gradients over all ranks as well."""

        def __init__(self) -> None:
            super().__init__(Recipe(steps=STEPS))
            self.automatic_optimization = False
            self.layer = layer()

        def training_step(self, rows: Tensor) -> Tensor:
            optimizer: Any = self.optimizers()
            strategy: Any = self.trainer.strategy
            loss = loss_of(self.layer(rows))
            optimizer.zero_grad()
            with strategy.block_backward_sync():
                self.manual_backward(loss)
            optimizer.step()
            assert isinstance(self.moves, Exchange)
            self.moves.gossip_(self.layer.parameters())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.layer)

    module = Gossiping()
    trainer_for(module.recipe, SIZE).fit(module)
    return module.layer.weight.detach()


def loop(exchange: Exchange, net: nn.Linear) -> Tensor:
    optimizer = sgd(net)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss_of(net(rows_of(number, exchange))).backward()
        optimizer.step()
        exchange.gossip_(net.parameters())
    return net.weight.detach()


def under_fabric() -> Tensor:
    from tests.support.probe import fabric

    runtime = fabric("lightning.pytorch", devices=SIZE)
    runtime.launch()
    return loop(Exchange(Ring, FabricAdapter(runtime)), layer())


def under_raw() -> Tensor:
    return loop(Exchange(Ring, RawDDPAdapter()), layer())


UNDER = {"lightning": under_lightning, "fabric": under_fabric, "raw": under_raw}


@runtimes("decentralised training, gossip_")
@pytest.mark.ranks(SIZE)
def test_ranks_that_gossip_have_the_weights_that_the_mixing_matrix_says(
    runtime: str, rank: int
) -> None:
    weights = expected()
    torch.testing.assert_close(UNDER[runtime](), weights[rank], rtol=1e-12, atol=1e-14)
    assert not weights[0].allclose(weights[1], rtol=1e-4)
