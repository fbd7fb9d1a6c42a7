"""A network of sharded layers learns as the unsharded one does, under DDP too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from collectives import Adapter, Exchange, Mesh
from collectives.nn import HaloConv2d, HaloPool2d
from tests.support.fields import Field
from tests.support.worlds import World

# Equal shards: then the mean of the shards' means is that of the field.
FIELD = Field(Mesh((2, 2), axes=("y", "x"), periodic=True), ((6, 6), (4, 4)))
DIMS: dict[int, str | int | None] = {2: "y", 3: "x"}


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, dtype=torch.float64),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 1, 3, padding="same", padding_mode="circular", dtype=torch.float64),
    )


def sharded(exchange: Exchange) -> nn.Sequential:
    whole = plain()
    pool = whole[2]
    assert isinstance(pool, nn.AvgPool2d)
    model = nn.Sequential(
        HaloConv2d(2, 4, 3, padding=1, dtype=torch.float64, exchange=exchange, dims=DIMS),
        nn.Tanh(),
        HaloPool2d(pool, exchange=exchange, dims=DIMS),
        HaloConv2d(
            4, 1, 3, padding="same", padding_mode="circular", dtype=torch.float64,
            exchange=exchange, dims=DIMS,
        ),
    )  # fmt: skip
    model.load_state_dict(whole.state_dict())
    return model


def expected_gradients() -> list[Tensor]:
    model = plain()
    model(FIELD.whole()[None]).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def under_ddp(adapter: Adapter) -> float:
    exchange = Exchange(FIELD.mesh, adapter)
    model = nn.parallel.DistributedDataParallel(sharded(exchange))
    loss = model(FIELD.shard(FIELD.whole(), exchange.rank)[None]).square().mean()
    exchange.join(loss).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    pairs = zip(grads, expected_gradients(), strict=True)
    return max(float((mine - whole).abs().max()) for mine, whole in pairs)


def test_the_mean_over_equal_shards_has_the_fields_gradient_under_ddp(rank_pool: object) -> None:
    assert max(World("gloo", rank_pool)(under_ddp, 4)) < 1e-14  # type: ignore[arg-type]


def summed(adapter: Adapter) -> float:
    exchange = Exchange(FIELD.mesh, adapter)
    model = copy.deepcopy(sharded(exchange))  # each layer's exchange is bound anew
    x = FIELD.shard(FIELD.whole(), exchange.rank)[None]
    # On one rank alone the input needs a gradient: all take part in its backward.
    x = x.clone().requires_grad_(exchange.rank == 1)
    last = model[3]
    assert isinstance(last, HaloConv2d)
    (last.exchange.join(model(x).square().mean() / exchange.size)).backward()
    error = 0.0
    for p, whole in zip(model.parameters(), expected_gradients(), strict=True):
        total = part = p.grad
        assert part is not None
        assert total is not None
        for _ in range(exchange.size - 1):
            ring = [(rank, (rank + 1) % exchange.size) for rank in range(exchange.size)]
            with torch.no_grad():
                part = exchange.permute(part, ring)
                total = total + part
        error = max(error, float((total - whole).abs().max()))
    return error


@pytest.mark.parametrize("transport", ["simulator", "gloo"])
def test_weight_gradients_summed_over_ranks_are_the_fields(
    rank_pool: object, transport: str
) -> None:
    assert max(World(transport, rank_pool)(summed, 4)) < 1e-14  # type: ignore[arg-type]
