"""Weights in shards: over a 2-D device mesh the exchange goes along the axis of the data.

Four ranks: the batches are those of two, and each is seen by a pair of ranks that share the layers.
The groups of the data axis are strided: ranks 0 and 2, ranks 1 and 3.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from adapters.fabric import FabricAdapter
from adapters.lightning import LightningAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.nets import Checkpointed, Folding, Net, Overlapping, Reentrant, loss_of
from tests.support.recipe import Recipe, Weights, assert_trained, optimizers, reference

pytestmark = pytest.mark.usefixtures("no_launcher")

DATA, LAYERS = "data_parallel", "tensor_parallel"  # Lightning's names
FEATURE = "FSDP2 and tensor parallel, 2-D device mesh"


def owned(kind: type[Net]) -> type[Net]:
    """Let it return no view, as FSDP2 wants it: layers that lie in shards return views."""

    class Owned(kind):  # type: ignore[misc, valid-type]
        across: Exchange | None = None  # along the other axis, where all ranks have the same

        def forward(self, rows: Tensor) -> Tensor:
            if self.across is not None:
                rows = self.across.shift(rows)
            made: Tensor = super().forward(rows)
            return made.clone() if self.across is None else self.across.shift(made)

    return Owned


RECIPE = Recipe(net=owned(Net))


def sharded(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    by_columns = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(net, mesh[LAYERS], {"encoder": by_columns, "head": by_columns})
    fully_shard(net, mesh=mesh[DATA])
    return net


def whole_weights(net: nn.Module) -> Weights:
    weights: Weights = {}
    for name, parameter in net.named_parameters():
        shard: object = parameter.data
        assert isinstance(shard, DTensor)
        assert shard.device_mesh.ndim == 2
        weights[name] = shard.full_tensor()
    return weights


def assert_over_data_axis(exchange: Exchange, rank: int) -> None:
    group = exchange._bound().context.group
    assert group is not None
    assert dist.get_process_group_ranks(group) == [rank % 2, rank % 2 + 2]
    assert (exchange.rank, exchange.size) == (rank // 2, 2)


@pytest.mark.cell(FEATURE, "lightning")
@pytest.mark.ranks(4)
def test_a_trainer_shards_weights_and_exchanges_along_both_axes(rank: int) -> None:
    from lightning.pytorch.strategies import ModelParallelStrategy

    from tests.support.under_lightning import Trained, trainer_for

    class Sharded(Trained):
        def __init__(self, recipe: Recipe) -> None:
            super().__init__(recipe, Exchange(Ring, LightningAdapter(self, mesh_axis=DATA)))
            net: Any = self.net
            net.across = Exchange(Ring, LightningAdapter(self, mesh_axis=LAYERS))

        def configure_model(self) -> None:
            assert self.device_mesh is not None
            sharded(self.net, self.device_mesh)

    module = Sharded(RECIPE)
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)
    trainer_for(RECIPE, 4, strategy=strategy, precision="32-true").fit(module)
    assert isinstance(module.moves, Exchange)
    assert_over_data_axis(module.moves, rank)
    assert_trained(whole_weights(module.net), reference(RECIPE, 2))


@pytest.mark.cell(FEATURE, "fabric")
@pytest.mark.matrix
@pytest.mark.ranks(4)
def test_a_fabric_shards_weights_and_exchanges_along_its_data_axis(rank: int) -> None:
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    from tests.support.probe import fabric

    strategy = ModelParallelStrategy(sharded, data_parallel_size=2, tensor_parallel_size=2)
    runtime = fabric("lightning.pytorch", devices=4, strategy=strategy)
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime, mesh_axis=DATA))
    net = RECIPE.net(exchange).double()
    model = runtime.setup_module(net)
    (optimizer,) = optimizers(net, split=False)
    optimizer = runtime.setup_optimizers(optimizer)
    for rows in RECIPE.batches(exchange):
        runtime.backward(loss_of(model(rows), exchange))
        optimizer.step()
        optimizer.zero_grad()
    assert_over_data_axis(exchange, rank)
    assert_trained(whole_weights(net), reference(RECIPE, 2))


@pytest.mark.cell(FEATURE, "raw")
@pytest.mark.matrix
@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", [Net, Overlapping, Folding, Checkpointed, Reentrant])
def test_a_plain_loop_shards_weights_and_exchanges_along_its_data_axis(
    kind: type[Net], rank: int
) -> None:
    recipe = Recipe(net=owned(kind))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=(DATA, LAYERS))
    exchange = Exchange(Ring, RawDDPAdapter(group=mesh.get_group(DATA)))
    net = recipe.net(exchange).double()
    sharded(net, mesh)
    (optimizer,) = optimizers(net, split=False)
    for rows in recipe.batches(exchange):
        loss_of(net(rows), exchange).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_over_data_axis(exchange, rank)
    assert_trained(whole_weights(net), reference(recipe, 2))
