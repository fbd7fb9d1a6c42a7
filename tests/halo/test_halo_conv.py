"""Law 7: a convolution of shards is that of the whole field, values and all gradients."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from collectives import Adapter, Context, Exchange, Mesh, Ring
from collectives.errors import ArgumentError, ExchangeMismatch
from collectives.nn import HaloConv1d, HaloConv2d, HaloConv3d
from collectives.testing import simulate
from tests.support.fields import Field
from tests.support.worlds import World

GRIDS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2))
Layer = type[HaloConv1d | HaloConv2d | HaloConv3d]
Parts = tuple[Tensor, Tensor, Tensor, Tensor]
Arguments = dict[str, object]


def weighed(y: Tensor) -> Tensor:
    """A loss whose gradient differs from place to place."""
    return (y * torch.sin(3 * y.detach() + 1)).sum()


def of_shard(
    adapter: Adapter, layer: Layer, field: Field, arguments: Arguments, state: dict[str, Tensor]
) -> Parts:
    """Output, and gradients of input, weight and bias, on one rank."""
    exchange = Exchange(field.mesh, adapter)
    dims = dict(enumerate(field.mesh.axes, start=2))
    conv = layer(2, 4, **arguments, exchange=exchange, dims=dims)  # type: ignore[arg-type]
    conv.load_state_dict(state)
    x = field.shard(field.whole(), exchange.rank)[None].clone().requires_grad_()
    y = conv(x)
    exchange.join(weighed(y)).backward()
    return (y.detach(), *gradients(x, conv))


def of_whole(plain: nn.Module, field: Field) -> Parts:
    x = field.whole()[None].requires_grad_()
    y = plain(x)
    weighed(y).backward()
    return (y.detach(), *gradients(x, plain))


def gradients(x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    assert x.grad is not None
    assert weight.grad is not None
    assert bias.grad is not None
    return x.grad, weight.grad, bias.grad


def check_equal(field: Field, parts: list[Parts], whole: Parts) -> None:
    outputs, inputs, weights, biases = zip(*parts, strict=True)
    # A weight's gradient on one rank is that of its shard's outputs: the ranks' sum is the whole.
    ours = (field.together(outputs), field.together(inputs), sum(weights), sum(biases))
    for mine, expected in zip(ours, whole, strict=True):
        assert isinstance(mine, Tensor)
        assert mine.shape == expected.shape
        scale = max(1.0, float(expected.abs().max()))
        assert float((mine - expected).abs().max()) <= 1e-12 * scale


@st.composite
def cases(draw: st.DrawFn) -> tuple[Field, Arguments]:
    shape = draw(st.sampled_from(GRIDS))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    same = draw(st.booleans())
    # What the axes do beyond the field does not matter, but for "circular".
    periodic = tuple(mode == "circular" or draw(st.booleans()) for _ in shape)
    arguments: Arguments = {
        "kernel_size": draw(st.tuples(st.integers(1, 7), st.integers(1, 7))),
        "stride": (1, 1) if same else draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "dilation": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "padding": "same" if same else draw(st.tuples(st.integers(0, 3), st.integers(0, 3))),
        "padding_mode": mode,
        "groups": draw(st.sampled_from([1, 2])),
        "dtype": torch.float64,
    }
    sizes = tuple(
        tuple(draw(st.lists(st.integers(1, 12), min_size=extent, max_size=extent)))
        for extent in shape
    )
    return Field(Mesh(shape, axes=("y", "x"), periodic=periodic), sizes), arguments


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(case=cases())
def test_a_convolution_of_shards_is_that_of_the_whole_field(case: tuple[Field, Arguments]) -> None:
    field, arguments = case
    torch.manual_seed(0)
    plain = nn.Conv2d(2, 4, **arguments)  # type: ignore[arg-type]
    state = copy.deepcopy(plain.state_dict())
    try:
        parts = simulate(field.mesh.size, of_shard, HaloConv2d, field, arguments, state)
    except ArgumentError:
        assume(False)  # a halo wider than a shard, or a field that is too small
        raise
    check_equal(field, parts, of_whole(plain, field))


def uneven(world: World, layer: Layer, plain: nn.Module, field: Field, **arguments: object) -> None:
    state = copy.deepcopy(plain.state_dict())
    parts = world(of_shard, field.mesh.size, layer, field, arguments, state)
    check_equal(field, parts, of_whole(plain, field))


LINE = Field(Mesh((3,), axes=("x",)), ((5, 3, 4),))
BOX = Field(Mesh((1, 2, 2), axes=("z", "y", "x")), ((4,), (3, 2), (4, 3)))


def test_one_dim_and_three(world: World) -> None:
    arguments: Arguments = {"kernel_size": 3, "padding": 1, "stride": 2, "dtype": torch.float64}
    uneven(world, HaloConv1d, nn.Conv1d(2, 4, **arguments), LINE, **arguments)  # type: ignore[arg-type]
    uneven(world, HaloConv3d, nn.Conv3d(2, 4, **arguments), BOX, **arguments)  # type: ignore[arg-type]


def test_a_rank_without_any_output_takes_part(world: World) -> None:
    field = Field(Mesh((3,), axes=("x",)), ((4, 3, 1),))
    arguments: Arguments = {"kernel_size": 3, "stride": 2, "dtype": torch.float64}
    uneven(world, HaloConv1d, nn.Conv1d(2, 4, **arguments), field, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
@pytest.mark.parametrize("padding", [(1, 2), "same"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_a_dim_that_is_not_sharded_is_padded_as_torch_does(
    mode: str, padding: str | tuple[int, int]
) -> None:
    """Without a batch dim, too: negative dims count from the last."""
    plain = nn.Conv2d(2, 4, (4, 4), padding=padding, padding_mode=mode, dtype=torch.float64)  # type: ignore[arg-type]
    x = torch.randn(2, 6, 9, dtype=torch.float64)

    def program(adapter: Adapter) -> Tensor:
        exchange = Exchange(Ring, adapter)
        conv = HaloConv2d(
            2, 4, (4, 4), padding=padding, padding_mode=mode, dtype=torch.float64,  # type: ignore[arg-type]
            exchange=exchange, dims={-1: "ring"},
        )  # fmt: skip
        conv.load_state_dict(plain.state_dict())
        with torch.no_grad():
            y: Tensor = conv(x[..., 3 * exchange.rank : 3 * exchange.rank + 3])
        return y

    together = torch.cat(simulate(3, program), -1)
    assert torch.allclose(together, plain(x), rtol=0, atol=1e-12)


def conv(exchange: Exchange, **arguments: object) -> HaloConv1d:
    return HaloConv1d(1, 1, exchange=exchange, **arguments)  # type: ignore[arg-type]


def refused(adapter: Adapter, periodic: bool, **arguments: object) -> str:
    exchange = Exchange(lambda size: Ring(size, periodic=periodic), adapter)
    layer = conv(exchange, dims={2: "ring"}, **arguments)
    with pytest.raises(ArgumentError) as caught:
        layer(torch.zeros(1, 1, 2 + exchange.rank))
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, "needs an axis that closes"),
        ({"kernel_size": 7, "padding": 3}, "expected at least 3 rows on every rank"),
        ({"kernel_size": 9}, "a window of 9 rows does not fit into a field of 5"),
    ],
)
def test_what_cannot_be_computed_is_refused_on_all_ranks(
    arguments: dict[str, object], text: str
) -> None:
    texts = simulate(2, lambda adapter: refused(adapter, periodic=False, **arguments))
    assert [text in one and one.startswith("HaloConv1d(") for one in texts] == [True, True]


@pytest.mark.parametrize("dims", [{0: "x"}, {1: "x"}, {4: "x"}, {2: "x", -2: "y"}, {2: None}])
def test_dims_that_are_not_spatial_are_refused(dims: dict[int, str]) -> None:
    exchange = Exchange(Mesh((1, 1), axes=("y", "x")), _Nobody())
    with pytest.raises(ArgumentError, match="HaloConv2d: dims must say which spatial dim"):
        HaloConv2d(1, 1, 3, exchange=exchange, dims=dims)


def test_layers_of_different_kernels_are_a_mismatch() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        conv(exchange, dims={2: "ring"}, kernel_size=3 + 2 * exchange.rank, padding="same")(
            torch.zeros(1, 1, 4)
        )

    with pytest.raises(ExchangeMismatch, match="HaloConv1d"):
        simulate(2, program)


def test_a_layer_is_copied_pickled_and_shown_with_its_dims() -> None:
    exchange = Exchange(Ring, _Nobody())
    layer = conv(exchange, dims={2: "ring"}, kernel_size=3, padding=1)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.weight, layer.weight)
        assert repr(twin) == repr(layer)
    assert repr(layer).endswith("padding=(1,), dims={2: 'ring'})")


class _Nobody:
    """An adapter that is never asked."""

    def context(self) -> Context:
        raise AssertionError
