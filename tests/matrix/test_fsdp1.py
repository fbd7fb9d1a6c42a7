"""FullyShardedDataParallel, the first of its kind: for GPUs only, as each runtime says by itself.

What is marked ``gpu`` was written on a machine without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.cells import runtimes
from tests.support.nets import Net, loss_of
from tests.support.recipe import Recipe, Weights, assert_trained, optimizers, reference, weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")

FSDP1 = "FSDP1 on the CPU (on GPUs never run)"
REFUSALS = {
    "lightning": "The strategy `fsdp` requires a GPU accelerator",
    "fabric": "FSDP is only available on GPU",
    "raw": "FSDP needs a non-CPU accelerator device",
}


def loop(net: nn.Module, exchange: Exchange, backward: Callable[[torch.Tensor], object]) -> None:
    (optimizer,) = optimizers(net, split=False)
    for rows in Recipe().batches(exchange):
        backward(loss_of(net(rows.to(exchange.device)), exchange))
        optimizer.step()
        optimizer.zero_grad()


def full(wrapper: nn.Module, net: nn.Module) -> Weights:
    with FullyShardedDataParallel.summon_full_params(wrapper):
        return {name: weight.cpu() for name, weight in weights_of(net).items()}


def under_raw(accelerator: str) -> Weights:
    exchange = Exchange(Ring, RawDDPAdapter(device=accelerator))
    net = Net(exchange).double().to(exchange.device)
    wrapper = FullyShardedDataParallel(net, use_orig_params=True)
    loop(wrapper, exchange, torch.Tensor.backward)
    return full(wrapper, net)


def under_fabric(accelerator: str) -> Weights:
    from lightning.fabric.strategies.fsdp import FSDPStrategy

    from tests.support.probe import fabric

    runtime = fabric(
        "lightning.pytorch",
        accelerator=accelerator,
        devices=dist.get_world_size(),
        strategy=FSDPStrategy(),
    )
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime))
    net = Net(exchange).double()
    wrapper = runtime.setup_module(net)
    loop(wrapper, exchange, runtime.backward)
    return full(wrapper._forward_module, net)


def under_lightning(accelerator: str) -> Weights:
    from lightning.pytorch.strategies import FSDPStrategy

    from tests.support.under_lightning import Trained, trainer_for

    class Sharded(Trained):
        def on_train_end(self) -> None:
            self.weights = full(cast("nn.Module", self.trainer.model), self.net)

    module = Sharded(Recipe())
    trainer_for(
        Recipe(),
        dist.get_world_size(),
        accelerator=accelerator,
        strategy=FSDPStrategy(),
        precision="32-true",
    ).fit(module)
    return module.weights


UNDER = {"lightning": under_lightning, "fabric": under_fabric, "raw": under_raw}


@runtimes(FSDP1)
@pytest.mark.ranks(2)
def test_without_a_gpu_the_runtime_itself_says_that_it_needs_one(runtime: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=REFUSALS[runtime]):
        UNDER[runtime]("cpu")


@runtimes(FSDP1)
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FSDP1 needs a GPU")
@pytest.mark.ranks(1, backend="nccl")
def test_on_a_gpu_it_trains_as_plain_torch(runtime: str) -> None:
    assert_trained(UNDER[runtime]("cuda"), reference(Recipe(), 1))
