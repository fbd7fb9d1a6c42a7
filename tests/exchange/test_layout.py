"""Memory: strides, ownership, buffers of the caller, uneven shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Received, Ring
from tests.support.worlds import SIZES, World


def mark(rank: int, side: int = 0) -> Tensor:
    """A tensor that tells who made it, and for which side."""
    return torch.arange(6, dtype=torch.float64).reshape(2, 3) + 100 * rank + 10_000 * side


def strided(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    base = torch.arange(48.0).reshape(2, 4, 6) + 100 * exchange.rank
    complex_base = torch.complex(base, -base)
    views = [
        base.transpose(0, 2),
        base[:, ::2, 1:],
        base[0, 0].expand(3, 6),
        base.permute(1, 2, 0),
        base.flip(0),
        base.reshape(1, 2, 4, 6).contiguous(memory_format=torch.channels_last),
        complex_base.conj(),
        complex_base.conj().imag,
        base[1, 2, 3],
    ]
    arrived = exchange.shift(views, 0 if exchange.size == 1 else exchange.size)
    singly = [exchange.shift(view, exchange.size) for view in views]
    for view, got, single in zip(views, arrived, singly, strict=True):
        assert torch.equal(got, view)
        assert torch.equal(single, view)
        assert single.is_contiguous()
    back = exchange.shift(exchange.shift(views), -1)
    return all(torch.equal(got, view) for got, view in zip(back, views, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_any_strides_are_sent_and_results_are_contiguous(world: World, size: int) -> None:
    assert all(world(strided, size))


def owned(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    mine = [mark(exchange.rank), torch.ones(3), torch.ones(2)]
    results = exchange.shift(mine) + list(exchange.exchange(to_left=mine[0], to_right=mine[0]))
    memory = {x.untyped_storage().data_ptr() for x in mine + results}
    assert len(memory) == len(mine) + len(results)
    before = [x.clone() for x in results]
    for x in mine:
        x.zero_()
    return all(torch.equal(x, old) for x, old in zip(results, before, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_results_are_copies_never_aliases(world: World, size: int) -> None:
    """Law 3: also on one rank."""
    assert all(world(owned, size))


def written_out(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    left, right = (rank - 1) % size, (rank + 1) % size
    out = Received(torch.empty(2, 3).double(), torch.empty(3, 2).double().t())
    received = exchange.exchange(to_left=mark(rank, 1), to_right=mark(rank, 2), out=out)
    assert torch.equal(out.from_left, mark(left, 2))
    assert torch.equal(out.from_right, mark(right, 1))
    assert received.from_left.data_ptr() == out.from_left.data_ptr()
    assert received.from_right.data_ptr() == out.from_right.data_ptr()
    buffers = [torch.empty(4), torch.empty(2), torch.empty(30_000)]
    sent = [torch.full((n,), float(rank)) for n in (4, 2, 30_000)]
    arrived = exchange.start_shift(sent, out=buffers).wait()
    assert all(b.eq(left).all() for b in buffers)
    return all(a.data_ptr() == b.data_ptr() for a, b in zip(arrived, buffers, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_out_is_written_to_whatever_its_strides(world: World, size: int) -> None:
    assert all(world(written_out, size))


def uneven(adapter: Adapter) -> bool:
    """Ranks send different shapes; ``like`` says what arrives."""
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    source = (rank - 1) % size
    got = exchange.shift(torch.full((rank + 1, 2), float(rank)), like=torch.empty(source + 1, 2))
    assert torch.equal(got, torch.full((source + 1, 2), float(source)))
    right = (rank + 1) % size
    received = exchange.exchange(
        to_left=torch.full((rank,), 1.0),
        to_right=None,
        like=Received(None, torch.empty(right, device="meta")),
    )
    return received.from_right.shape == (right,)


@pytest.mark.parametrize("size", SIZES)
def test_like_gives_the_shape_of_what_arrives(world: World, size: int) -> None:
    assert all(world(uneven, size))
