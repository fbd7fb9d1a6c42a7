"""A pooling of shards is that of the whole field, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from collectives import Adapter, Exchange, Mesh, Ring
from collectives.errors import ArgumentError
from collectives.nn import HaloPool2d
from collectives.testing import simulate
from tests.support.fields import Field

Pool = nn.MaxPool2d | nn.AvgPool2d
GRIDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2))


def weighed(y: Tensor) -> Tensor:
    return (y * torch.sin(3 * y.detach() + 1)).sum()


def of_shard(adapter: Adapter, pool: Pool, field: Field, values: Tensor) -> tuple[Tensor, Tensor]:
    exchange = Exchange(field.mesh, adapter)
    layer = HaloPool2d(pool, exchange=exchange, dims={2: "y", 3: "x"})
    x = field.shard(values, exchange.rank)[None].clone().requires_grad_()
    y = layer(x)
    exchange.join(weighed(y)).backward()
    assert x.grad is not None
    return y.detach(), x.grad


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride = draw(st.none() | st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    ceil = draw(st.booleans())
    if draw(st.booleans()):
        return nn.MaxPool2d(kernel, stride, padding, draw(st.integers(1, 2)), ceil_mode=ceil)
    return nn.AvgPool2d(
        kernel, stride, padding, ceil, draw(st.booleans()), draw(st.sampled_from([None, 3]))  # type: ignore[arg-type]
    )  # fmt: skip


@st.composite
def fields(draw: st.DrawFn) -> Field:
    shape = draw(st.sampled_from(GRIDS))
    sizes = tuple(
        tuple(draw(st.lists(st.integers(1, 8), min_size=extent, max_size=extent)))
        for extent in shape
    )
    return Field(Mesh(shape, axes=("y", "x"), periodic=draw(st.booleans())), sizes)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(pool=pools(), field=fields(), ties=st.booleans())
def test_a_pooling_of_shards_is_that_of_the_whole_field(
    pool: Pool, field: Field, *, ties: bool
) -> None:
    # All negative: zeros of a padding that won a maximum would show. Where maxima are equal, the
    # gradient goes to the first of a window, wherever the shards end.
    values = field.whole().round() - 9 if ties else field.whole() - 9
    try:
        parts = simulate(field.mesh.size, of_shard, pool, field, values)
    except ArgumentError:
        assume(False)  # a halo wider than a shard, or a field that is too small
        raise
    x = values[None].clone().requires_grad_()
    y = pool(x)
    assume(bool(y.isfinite().all()))  # a dilated window can miss the field, which has no gradient
    weighed(y).backward()
    assert x.grad is not None
    outputs, grads = zip(*parts, strict=True)
    assert torch.allclose(field.together(outputs), y, rtol=0, atol=1e-12)
    assert torch.allclose(field.together(grads), x.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 2, 1)])
def test_a_dim_that_is_not_sharded_is_pooled_as_torch_does(pool: Pool) -> None:
    values = torch.randn(2, 7, 6, dtype=torch.float64) - 9

    def program(adapter: Adapter) -> Tensor:
        exchange = Exchange(Ring, adapter)
        layer = HaloPool2d(pool, exchange=exchange, dims={-1: "ring"})
        y: Tensor = layer(values[..., 2 * exchange.rank : 2 * exchange.rank + 2])
        return y

    assert torch.allclose(torch.cat(simulate(3, program), -1), pool(values))


def test_indices_and_other_layers_are_refused() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        with pytest.raises(ArgumentError, match="return_indices=True gives places in the shard"):
            HaloPool2d(nn.MaxPool2d(2, return_indices=True), exchange=exchange, dims={2: 0})
        with pytest.raises(ArgumentError, match="expected a MaxPool2d or an AvgPool2d, got Linear"):
            HaloPool2d(nn.Linear(1, 1), exchange=exchange, dims={2: 0})  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="a window of 3 rows does not fit"):
            HaloPool2d(nn.MaxPool2d(3), exchange=exchange, dims={2: 0})(torch.zeros(1, 1, 2, 3))

    simulate(1, program)
