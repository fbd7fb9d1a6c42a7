"""B: every dtype that the backend carries, bit by bit. See README.md."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Received, Ring
from collectives.errors import ArgumentError
from collectives.testing import Simulation
from tests.support.worlds import SIZES, World

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

NAMES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
    "bits8", "bits16", "bits1x8", "uint4", "int4",
]  # fmt: skip
DTYPES: list[torch.dtype] = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]
STORAGE_ONLY = [d for d in DTYPES if any(kind in str(d) for kind in ("bits", "float4", "int4"))]


def content(dtype: torch.dtype, rank: int, side: int = 0) -> Tensor:
    """Return 6 elements of any bits (of a bool: 0 and 1), NaNs of all kinds included."""
    generator = torch.Generator().manual_seed(10 * rank + side)
    largest = 2 if dtype == torch.bool else 256
    size = (6 * dtype.itemsize,)
    return torch.randint(largest, size, generator=generator, dtype=torch.uint8).view(dtype)


def bits(tensor: Tensor) -> list[int]:
    numbers: list[int] = tensor.contiguous().view(-1).view(torch.uint8).tolist()
    return numbers


def check_dtype(exchange: Exchange, dtype: torch.dtype) -> None:
    rank, size = exchange.rank, exchange.size
    left, right = (rank - 1) % size, (rank + 1) % size
    out = Received(content(dtype, 99), content(dtype, 99))
    to_left, to_right = content(dtype, rank), content(dtype, rank, 1)
    for from_left, from_right in (
        exchange.exchange(to_left=to_left, to_right=to_right),
        exchange.start_exchange(to_left=to_left, to_right=to_right).wait(),
        exchange.exchange(to_left=to_left, to_right=to_right, out=out),
    ):
        assert from_left.dtype == from_right.dtype == dtype
        assert bits(from_left) == bits(content(dtype, left, 1)), dtype
        assert bits(from_right) == bits(content(dtype, right)), dtype
    assert bits(out.from_left) == bits(content(dtype, left, 1))
    in_a_tree = exchange.shift([to_left, torch.ones(2), to_right])
    assert bits(in_a_tree[2]) == bits(content(dtype, left, 1)), dtype
    transposed = exchange.shift(to_left.view(2, 3).t())
    as_bytes = content(dtype, left).view(torch.uint8).view(2, 3, dtype.itemsize)
    assert bits(transposed) == as_bytes.transpose(0, 1).flatten().tolist(), dtype


def all_dtypes(adapter: Adapter) -> int:
    exchange = Exchange(Ring, adapter)
    for dtype in DTYPES:
        check_dtype(exchange, dtype)
    together = exchange.shift([content(dtype, exchange.rank) for dtype in DTYPES])
    source = (exchange.rank - 1) % exchange.size
    for arrived, dtype in zip(together, DTYPES, strict=True):
        assert bits(arrived) == bits(content(dtype, source)), dtype
    return len(DTYPES)


@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_arrives_bit_by_bit(world: World, size: int) -> None:
    """C26: what P2P carries. pytorch/pytorch#111131, pytorch/pytorch#113557, pytorch/pytorch#2699,
    pytorch/gloo#454, Lightning-AI/torchmetrics#1809."""
    assert world(all_dtypes, size) == [len(DTYPES)] * size
    assert len(DTYPES) >= 20


def beyond_an_open_end(adapter: Adapter) -> bool:
    exchange = Exchange(lambda size: Ring(size, periodic=False), adapter)
    for dtype in DTYPES:
        arrived = exchange.shift(content(dtype, exchange.rank))
        if exchange.rank == 0:
            assert set(bits(arrived)) <= ({0, 127} if dtype in NO_ZERO else {0}), dtype
    return True


# Powers of two only: the nearest that it has to 0 is not a row of zero bits everywhere.
NO_ZERO = {getattr(torch, "float8_e8m0fnu", None)}


@pytest.mark.parametrize("size", [1, 2])
def test_an_open_end_is_filled_whatever_the_dtype(world: World, size: int) -> None:
    """C26: also where torch has no kernel that fills."""
    assert all(world(beyond_an_open_end, size))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [(torch.uint8, 300), (torch.int32, float("nan")), *((d, 1) for d in STORAGE_ONLY)],
)
@pytest.mark.parametrize("size", [1, 3])
def test_a_fill_that_the_dtype_cannot_hold_is_refused_on_every_rank(
    size: int, dtype: torch.dtype, fill: float
) -> None:
    """C26: not only on the rank at the edge, whose neighbours would wait for it."""

    def program(adapter: Adapter) -> None:
        exchange = Exchange(lambda size: Ring(size, periodic=False), adapter)
        with pytest.raises(ArgumentError, match=f"fill={fill} does not go into"):
            exchange.shift(content(dtype, exchange.rank), fill=fill)

    simulation = Simulation(size)
    simulation.run(program)
    assert not simulation.traffic
