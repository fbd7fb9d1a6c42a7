"""B: two ends of a message that do not fit. See README.md for the entries and their reports."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import DebugLevel, set_debug_level

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support import plain
from tests.support.worlds import SIZES, World

Program = Callable[[Adapter], object]
SHORT, LONG = torch.tensor([1.0, 2.0, 3.0]), torch.arange(5.0)


def checked(adapter: Adapter, name: str = "") -> Exchange:
    return Exchange(Ring, adapter, name=name, timeout=30, verify="always")


def error_of(adapter: Adapter, program: Program) -> str:
    begun = time.monotonic()
    with pytest.raises(ExchangeMismatch) as caught:
        program(adapter)
    assert time.monotonic() - begun < 3
    return str(caught.value)


def errors_over_gloo(pool: RankPool, program: Program, size: int = 2) -> list[str]:
    """Return what every rank raised, and throw the ranks away: their group is broken."""
    errors = pool.run(lambda: error_of(RawDDPAdapter(), program), size=size)
    pool.discard()
    return errors


def named_by_the_simulator(program: Program, size: int = 2) -> str:
    with pytest.raises(ExchangeMismatch) as caught:
        Simulation(size).run(program)
    return str(caught.value)


# -- C08 ----------------------------------------------------------------------------------------


def other_order_and_size(adapter: Adapter) -> None:
    calls = [("a", LONG), ("b", SHORT)]
    for name, tensor in calls if adapter.context().rank else reversed(calls):
        checked(adapter, name).shift(tensor)


def test_an_order_mismatch_of_other_sizes_is_an_error_on_both_ranks(rank_pool: RankPool) -> None:
    """C08: order mismatch, unequal sizes. NVIDIA/apex#19, NVIDIA/nccl#389,
    pytorch/pytorch#113376, pytorch/pytorch#50092."""
    for error in errors_over_gloo(rank_pool, other_order_and_size):
        assert "differ (here / there) in name; tensors: " in error
    assert "in name; tensors: " in named_by_the_simulator(other_order_and_size)


def plain_other_order_and_size() -> None:
    tensors = [LONG, SHORT]
    for tensor in tensors if dist.get_rank() else reversed(tensors):
        plain.shift(tensor)


def test_the_plain_form_dies_by_an_order_mismatch_of_other_sizes(rank_pool: RankPool) -> None:
    """C08, control."""
    with pytest.raises(RanksFailedError, match="SIGABRT"):
        rank_pool.run(plain_other_order_and_size, size=2)


# -- C12 ----------------------------------------------------------------------------------------


def both_at_once(adapter: Adapter, periodic: bool) -> list[float]:
    exchange = Exchange(lambda size: Ring(size, periodic=periodic), adapter)
    with torch.no_grad():
        from_left = exchange.shift(torch.full((100_000,), float(exchange.rank)), fill=-1)
        from_right = exchange.shift(torch.tensor(float(exchange.rank)), -1, fill=-1)
    return [from_left[-1].item(), from_right.item()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("periodic", [True, False])
def test_all_ranks_may_send_before_they_receive(world: World, size: int, periodic: bool) -> None:
    """C12: blocking send, then receive, on every rank. NVIDIA/nccl#479, NVIDIA/nccl#784,
    pytorch/pytorch#108378, meta-pytorch/torchrec#4472, NVIDIA/nccl#2057."""
    for rank, arrived in enumerate(world(both_at_once, size, periodic)):
        sides = [rank - 1, rank + 1]
        expected = [r % size if periodic or 0 <= r < size else -1 for r in sides]
        assert arrived == expected


def plain_send_then_receive() -> None:
    left, right = plain.neighbours()
    dist.send(torch.ones(4), right)
    dist.recv(torch.empty(4), left)


def test_the_plain_form_waits_for_ever_where_all_ranks_send_first(rank_pool: RankPool) -> None:
    """C12, control: sixteen bytes are enough."""
    with pytest.raises(RanksFailedError, match=r"Timed out|timeout|closed"):
        rank_pool.run(plain_send_then_receive, size=3, timeout=4)


# -- C15, C16, C19 ------------------------------------------------------------------------------


def sending(mine: Tensor, theirs: Tensor) -> Program:
    """Rank 0 sends ``mine`` and expects such; the others ``theirs``."""

    def program(adapter: Adapter) -> None:
        exchange = checked(adapter)
        exchange.shift(theirs if exchange.rank else mine)

    return program


def check_named(pool: RankPool, mine: Tensor, theirs: Tensor, *words: str) -> None:
    """Check that both ranks say what they send, and the simulator what each of them does."""
    program = sending(mine, theirs)
    errors = errors_over_gloo(pool, program)
    report = named_by_the_simulator(lambda adapter: Exchange(Ring, adapter).shift(
        theirs if adapter.context().rank else mine
    ))  # fmt: skip
    for error, word in zip(errors, words, strict=True):
        assert word in error
        assert "in tensors: " in error
        assert word in report


@pytest.mark.parametrize("other", [SHORT, torch.empty(0)], ids=["shorter", "empty"])
def test_a_short_message_is_an_error_on_both_ranks(rank_pool: RankPool, other: Tensor) -> None:
    """C15: short message. NVIDIA/nccl#1938, pytorch/pytorch#113376, NVIDIA/nccl#1937,
    NVIDIA/nccl#969."""
    check_named(rank_pool, other, LONG, f"float32[{len(other)}]", "float32[5]")


def plain_send(sent: Tensor, into: Tensor) -> Tensor:
    if dist.get_rank() == 0:
        dist.send(sent, 1)
    else:
        dist.recv(into, 0)
    return into


def test_the_plain_form_takes_a_short_message_for_the_whole(rank_pool: RankPool) -> None:
    """C15, control: no side is told."""
    _, arrived = rank_pool.run(plain_send, SHORT, torch.full((5,), -7.0), size=2)
    assert arrived.tolist() == [1, 2, 3, -7, -7]


@pytest.mark.parametrize("other", [SHORT, torch.empty(0)], ids=["shorter", "empty"])
def test_a_long_message_is_an_error_on_both_ranks(rank_pool: RankPool, other: Tensor) -> None:
    """C16: long message. pytorch/gloo#456, PrimeIntellect-ai/prime-diloco#68."""
    check_named(rank_pool, LONG, other, "float32[5]", f"float32[{len(other)}]")


def test_the_plain_form_dies_by_a_long_message(rank_pool: RankPool) -> None:
    """C16, control: the receiving process, without a Python exception."""
    with pytest.raises(RanksFailedError, match="SIGABRT"):
        rank_pool.run(plain_send, LONG, torch.empty(3), size=2)


DTYPES = [
    (torch.int32, torch.float32), (torch.float32, torch.float64), (torch.float64, torch.float32),
    (torch.bfloat16, torch.float16), (torch.complex64, torch.float64), (torch.bool, torch.uint8),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), DTYPES)
def test_another_dtype_is_an_error_on_both_ranks(
    rank_pool: RankPool, one: torch.dtype, other: torch.dtype
) -> None:
    """C19: dtype mismatch. pytorch/pytorch#102354, pytorch/pytorch#110408."""
    names = (str(dtype).removeprefix("torch.") for dtype in (one, other))
    words = (f"{name}[3]" for name in names)
    check_named(rank_pool, torch.ones(3).to(one), torch.ones(3).to(other), *words)


def test_the_plain_form_reads_another_dtype_without_a_word(rank_pool: RankPool) -> None:
    """C19, control: bytes are reinterpreted."""
    sent = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _, arrived = rank_pool.run(plain_send, sent, torch.full((4,), -7.0).double(), size=2)
    assert arrived.tolist() == [*sent.view(torch.float64).tolist(), -7, -7]


# -- C17 ----------------------------------------------------------------------------------------


def rows_of(rank: int) -> Tensor:
    return torch.full((3 - rank % 3, 2), float(rank))


def uneven_ring(adapter: Adapter) -> list[list[float]]:
    exchange = Exchange(Ring, adapter)
    block, arrived = rows_of(exchange.rank), []
    for _ in range(exchange.size):
        block = exchange.shift(block, shapes="discover")
        arrived.append(block.flatten().tolist())
    return arrived


@pytest.mark.parametrize("size", SIZES)
def test_uneven_rows_go_round_a_ring_whole(world: World, size: int) -> None:
    """C17: uneven rows round a ring. Lightning-AI/pytorch-lightning#7773,
    Lightning-AI/pytorch-lightning#19485, pytorch/pytorch#56112, NVIDIA/physicsnemo#1535,
    pytorch/pytorch#70037."""
    for rank, arrived in enumerate(world(uneven_ring, size)):
        hops = range(1, size + 1)
        assert arrived == [rows_of((rank - hop) % size).flatten().tolist() for hop in hops]


def even_ring(adapter: Adapter) -> None:
    exchange = checked(adapter)
    exchange.shift(rows_of(exchange.rank))


def test_uneven_rows_that_nobody_announced_are_an_error_on_every_rank(rank_pool: RankPool) -> None:
    """C17, where every rank says that shapes are the same."""
    errors = errors_over_gloo(rank_pool, even_ring, size=3)
    assert [f"float32[{3 - r}, 2]" in error for r, error in enumerate(errors)] == [True] * 3


def plain_uneven_ring() -> None:
    plain.shift(rows_of(dist.get_rank()))
    dist.barrier()


def test_the_plain_form_dies_by_uneven_rows(rank_pool: RankPool) -> None:
    """C17, control."""
    with pytest.raises(RanksFailedError, match="SIGABRT"):
        rank_pool.run(plain_uneven_ring, size=3)


# -- C74 ----------------------------------------------------------------------------------------


def with_debug_detail(program: Callable[[dist.ProcessGroup], object]) -> object:
    set_debug_level(DebugLevel.DETAIL)
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return program(group)


def test_our_check_does_not_rest_on_torchs_debug_level(rank_pool: RankPool) -> None:
    """C74: debug level (no public report)."""

    def program(group: dist.ProcessGroup) -> str:
        return error_of(RawDDPAdapter(group), sending(SHORT, LONG))

    errors = rank_pool.run(lambda: with_debug_detail(program), size=2)
    rank_pool.discard()
    assert all("in tensors: " in str(error) for error in errors)


def test_torchs_debug_level_does_not_look_at_messages(rank_pool: RankPool) -> None:
    """C74, control: DETAIL finds collectives that do not fit, and neither size nor order here."""

    def program(group: dist.ProcessGroup) -> list[float]:
        into = torch.full((5,), -7.0)
        if dist.get_rank() == 0:
            dist.send(SHORT, 1, group=group)
        else:
            dist.recv(into, 0, group=group)
        return into.tolist()

    _, arrived = rank_pool.run(lambda: with_debug_detail(program), size=2)
    rank_pool.discard()
    assert arrived == [1, 2, 3, -7, -7]
