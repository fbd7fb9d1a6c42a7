"""B: sizes, dtypes, layout. See README.md for the entries and their public reports."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support import plain
from tests.support.worlds import SIZES, World

TAGS = pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])


def other_shape_per_side(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    left, right = (exchange.rank - 1) % exchange.size, (exchange.rank + 1) % exchange.size
    mine = float(exchange.rank)
    from_left, from_right = exchange.exchange(
        to_left=torch.full((2, 3), mine), to_right=torch.full((5,), mine)
    )
    return torch.equal(from_left, torch.full((5,), float(left))) and torch.equal(
        from_right, torch.full((2, 3), float(right))
    )


@pytest.mark.parametrize("size", SIZES)
def test_each_side_may_have_a_shape_of_its_own(world: World, size: int) -> None:
    """C18: different shapes to the left and right (no public report)."""
    assert all(world(other_shape_per_side, size))


def plain_other_shapes() -> None:
    plain.both_ways(torch.ones(2, 3), torch.ones(5))
    dist.barrier()


def test_the_plain_form_kills_a_process_by_two_shapes_on_two_ranks(rank_pool: RankPool) -> None:
    """C18, control: no Python exception on the receiving side."""
    rank_pool.run(plain_other_shapes, size=3)
    with pytest.raises(RanksFailedError, match="SIGABRT"):
        rank_pool.run(plain_other_shapes, size=2)


def same_bytes(adapter: Adapter) -> Tensor:
    exchange = Exchange(Ring, adapter)
    return exchange.shift(torch.arange(6.0).reshape(2 + exchange.rank, -1), timeout=2)


@TAGS
def test_another_shape_of_the_same_bytes_is_named(tags: bool) -> None:
    """C21: same bytes, other shape or memory format. pytorch/pytorch#62283."""
    with pytest.raises(ExchangeMismatch, match=r"float32\[(2, 3|3, 2)\].*float32\[(2, 3|3, 2)\]"):
        Simulation(2, tags=tags).run(same_bytes)


def error_of_same_bytes() -> str:
    with pytest.raises(ExchangeMismatch) as caught:
        same_bytes(RawDDPAdapter())
    return str(caught.value)


def test_another_shape_of_the_same_bytes_is_never_received_over_gloo(rank_pool: RankPool) -> None:
    """C21: the shape is part of the tag; each rank says what both sent."""
    errors = rank_pool.run(error_of_same_bytes, size=2)
    rank_pool.discard()
    assert all("float32[2, 3]" in error and "float32[3, 2]" in error for error in errors)


@pytest.mark.ranks(2)
def test_the_plain_form_reads_another_shape_without_a_word(rank: int) -> None:
    """C21, control."""
    arrived = plain.shift(torch.arange(6.0).reshape(2 + rank, -1))
    assert arrived.shape == (2 + rank, 3 - rank)


def another_memory_format(adapter: Adapter) -> bool:
    """Rank 0 sends channels last, the others in the usual order."""
    exchange = Exchange(Ring, adapter)
    images = torch.arange(24.0).reshape(1, 2, 3, 4)
    mine = images.contiguous(memory_format=torch.channels_last) if exchange.rank == 0 else images
    arrived = exchange.shift(mine)
    return torch.equal(arrived, images) and arrived.is_contiguous()


@pytest.mark.parametrize("size", SIZES)
def test_values_keep_their_places_whatever_the_memory_format(world: World, size: int) -> None:
    """C21: results are contiguous, on every rank."""
    assert all(world(another_memory_format, size))


def views(rank: int) -> list[Tensor]:
    base = torch.arange(48.0).reshape(2, 4, 6) + 100 * rank
    return [
        base.transpose(0, 2),
        base[:, 1:3],
        base[0, 0].expand(3, 6),
        base[..., ::2],
    ]


def move_views(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    source = (exchange.rank - 1) % exchange.size
    singly = [exchange.shift(view) for view in views(exchange.rank)]
    for got in (singly, exchange.shift(views(exchange.rank))):
        for arrived, sent in zip(got, views(source), strict=True):
            assert torch.equal(arrived, sent)
            assert arrived.is_contiguous()
    return True


@pytest.mark.parametrize("size", SIZES)
def test_any_view_can_be_sent_and_results_are_contiguous(world: World, size: int) -> None:
    """C22: non-contiguous input. pytorch/pytorch#62283, pytorch/pytorch#77554,
    pytorch/pytorch#161324, pytorch/pytorch#74809, pytorch/pytorch#114982, pytorch/pytorch#94907,
    NVIDIA/nccl#1655."""
    assert all(world(move_views, size))


@pytest.mark.ranks(2)
def test_the_plain_form_refuses_views_and_its_own_buffer_for_one(rank: int) -> None:
    """C22, C23, control."""
    for view in views(rank):
        with pytest.raises(RuntimeError, match="contiguous"):
            plain.shift(view)


def transposed_features(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    left, right = (exchange.rank - 1) % exchange.size, (exchange.rank + 1) % exchange.size

    def features(rank: int) -> Tensor:
        return (torch.arange(12.0).reshape(3, 4) + 100 * rank).t()

    mine = features(exchange.rank)
    assert not torch.zeros_like(mine).is_contiguous()  # what the plain form receives into
    out = torch.empty(3, 4).t()
    received = exchange.exchange(to_left=mine, to_right=mine)
    exchange.shift(mine, out=out)
    return (
        torch.equal(received.from_left, features(left))
        and torch.equal(received.from_right, features(right))
        and received.from_left.is_contiguous()
        and torch.equal(out, features(left))
    )


@pytest.mark.parametrize("size", SIZES)
def test_what_arrives_does_not_inherit_a_transposed_layout(world: World, size: int) -> None:
    """C23: zeros_like keeps the layout (no public report)."""
    assert all(world(transposed_features, size))


def awkward_gradients(adapter: Adapter) -> list[list[float]]:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2, 3, requires_grad=True)
    weight = torch.arange(6.0).reshape(3, 2) * (exchange.rank + 1)
    exchange.shift(x).sum().backward()  # an expanded gradient: all strides 0
    (exchange.shift(x).t() * weight).sum().backward()  # a transposed one
    exchange.start_shift(x).wait()[:, ::2].sum().backward()
    assert x.grad is not None
    gradient: list[list[float]] = x.grad.tolist()
    return gradient


@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_of_a_sum_or_of_a_transpose_comes_back(world: World, size: int) -> None:
    """C25: expanded and transposed gradients (no public report; the first thing a user tries)."""
    for rank, gradient in enumerate(world(awkward_gradients, size)):
        weight = torch.arange(6.0).reshape(3, 2).t() * ((rank + 1) % size + 1)
        expected = 1 + weight + torch.tensor([1.0, 0.0, 1.0])
        assert gradient == expected.tolist()


@pytest.mark.ranks(2)
def test_the_plain_form_fails_in_the_backward_of_a_sum() -> None:
    """C25, control."""
    shifted = plain.Shifted.apply(torch.ones(2, 3, requires_grad=True))  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="contiguous"):
        shifted.sum().backward()


def nothing_and_scalars(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    source = float((exchange.rank - 1) % exchange.size)
    scalar = torch.tensor(float(exchange.rank), requires_grad=True)
    empty = torch.empty(0, 4, requires_grad=True)
    got = exchange.shift([scalar, empty, torch.empty(2, 0, dtype=torch.int64)])
    alone = [exchange.shift(scalar), exchange.shift(empty)]
    for zero_d, zero_size in (got[:2], alone):
        assert zero_d.shape == ()
        assert zero_d.item() == source
        assert zero_size.shape == (0, 4)
    assert got[2].shape == (2, 0)
    (got[0] + 2 * alone[0] + alone[1].sum()).backward()
    assert scalar.grad is not None
    assert empty.grad is not None
    return scalar.grad.item() == 3 and empty.grad.shape == (0, 4)


@pytest.mark.parametrize("size", SIZES)
def test_tensors_of_no_element_and_of_no_dimension_travel(world: World, size: int) -> None:
    """C29: pytorch/pytorch#140741, pytorch/pytorch#84099, PaddlePaddle/Paddle#73875,
    meta-pytorch/torchstore#177."""
    assert all(world(nothing_and_scalars, size))


@pytest.mark.ranks(2, timeout=120)
def test_half_a_gibibyte_arrives_as_one_message(rank: int) -> None:
    """C31: fear of a size limit. pytorch/gloo#474."""
    exchange = Exchange(Ring, RawDDPAdapter())
    block = torch.zeros(512 << 20, dtype=torch.uint8)
    marks = torch.tensor([0, 1, 12_345_678, (256 << 20) - 1, 256 << 20, (512 << 20) - 1])
    block[marks] = torch.arange(1, 7, dtype=torch.uint8) * 10 + rank
    arrived = exchange.shift(block)
    assert arrived[marks].tolist() == [10 * k + 1 - rank for k in range(1, 7)]
    assert int(arrived.count_nonzero()) == 6
    assert exchange.stats()["messages_sent"] == 1


def a_thousand(adapter: Adapter) -> tuple[float, bool]:
    exchange = Exchange(Ring, adapter)
    source = (exchange.rank - 1) % exchange.size
    with torch.no_grad():
        sent = [torch.full((64,), float(1000 * exchange.rank + k)) for k in range(1000)]
        arrived = exchange.shift(sent)
    right = all(bool(x.eq(1000 * source + k).all()) for k, x in enumerate(arrived))
    return exchange.stats()["messages_sent"], right


@pytest.mark.parametrize("size", SIZES)
def test_a_thousand_small_tensors_travel_as_one_message(world: World, size: int) -> None:
    """C32: one message per tensor. pytorch/pytorch#50092, pytorch/pytorch#49968,
    pytorch/pytorch#174288."""
    assert world(a_thousand, size) == [(0 if size == 1 else 1, True)] * size
