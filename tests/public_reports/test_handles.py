"""B: buffers and handles. See README.md for the entries and their public reports."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collectives import Adapter, Context, Exchange, Ring
from collectives.errors import ExchangeError, ExchangeMismatch, PendingDropped
from collectives.testing import SimulatedAdapter, Simulation
from collectives.transport.group import GroupTransport
from tests.support.worlds import SIZES, World

KINDS = ["small", "large", "packed"]
KIND = pytest.mark.parametrize("kind", KINDS)


def block(kind: str, rank: int) -> list[Tensor]:
    elements = 100_000 if kind == "large" else 4  # 400 kB travel without a copy
    return [torch.full((elements,), float(rank)) for _ in range(3 if kind == "packed" else 1)]


def written_to_while_it_is_sent(adapter: Adapter, kind: str) -> str:
    exchange = Exchange(Ring, adapter)
    mine = block(kind, exchange.rank)
    pending = exchange.start_shift(mine)
    mine[-1].fill_(9)
    with pytest.raises(ExchangeError, match="modified in place between start and wait") as caught:
        pending.wait()
    with pytest.raises(ExchangeError, match=r"wait\(\) failed before"):
        pending.wait()
    # Nothing is broken: its messages have arrived.
    source = (exchange.rank - 1) % exchange.size
    assert exchange.shift(block(kind, exchange.rank))[0].eq(source).all()
    return str(caught.value)


@KIND
@pytest.mark.parametrize("size", SIZES)
def test_a_write_between_start_and_wait_is_named(world: World, size: int, kind: str) -> None:
    """C34: the sender writes before wait. pytorch/tutorials#3009, pytorch/tutorials#3052."""
    for text in world(written_to_while_it_is_sent, size, kind):
        assert "test_handles.py" in text, "names the line that started it"


def written_to_after_the_call(adapter: Adapter, kind: str) -> bool:
    exchange = Exchange(Ring, adapter)
    mine = block(kind, exchange.rank)
    arrived = exchange.shift(mine)
    for x in mine:
        x.fill_(-1)
    pending = exchange.start_shift([x + 5 for x in arrived])
    later = pending.wait()
    before = (exchange.rank - 2) % exchange.size
    return all(bool(x.eq(before + 5).all()) for x in later)


@KIND
@pytest.mark.parametrize("size", SIZES)
def test_what_was_sent_may_be_written_to_after_the_call(world: World, size: int, kind: str) -> None:
    """C34: the default is the blocking call."""
    assert all(world(written_to_after_the_call, size, kind))


@pytest.mark.ranks(2)
def test_the_plain_form_delivers_what_was_written_after_it_was_sent(rank: int) -> None:
    """C34, control: a receiver that is late gets the new values, without a word."""
    if rank == 0:
        x = torch.ones(4)
        work = dist.isend(x, 1)
        assert work is not None
        x.fill_(9)
        dist.barrier()
        work.wait()
    else:
        arrived = torch.zeros(4)
        dist.barrier()
        dist.recv(arrived, 0)
        assert arrived.tolist() == [9] * 4


def waits(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    pending = exchange.start_exchange(to_left=torch.ones(2), to_right=torch.zeros(2))
    assert repr(pending).endswith("under way>")
    first = pending.wait()
    assert pending.wait() is first
    assert pending.wait().from_left is first.from_left
    assert exchange.stats()["exchanges"] == 1
    return repr(pending)


@pytest.mark.parametrize("size", SIZES)
def test_wait_is_idempotent_and_the_handle_knows_that_it_is_done(world: World, size: int) -> None:
    """C36: polling never ends, a second wait hangs. pytorch/pytorch#30723,
    cisco-open/pymultiworld#81, pytorch/pytorch#149177."""
    assert all(text.endswith("waited for>") for text in world(waits, size))


def thrown_away(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    exchange.start_shift(torch.ones(3))
    with pytest.raises(PendingDropped, match=r"test_handles\.py:\d+: the Pending was thrown away"):
        exchange.shift(torch.ones(3))
    return bool(exchange.shift(torch.full((3,), 2.0)).eq(2).all())


@pytest.mark.parametrize("size", SIZES)
def test_a_handle_thrown_away_is_named_and_its_message_does_not_stay(
    world: World, size: int
) -> None:
    """C36: a Work that nobody keeps loses its message."""
    assert all(world(thrown_away, size))


class InBatches:
    """Posts as on a backend that coalesces: gloo then gives back one Work per message."""

    def context(self) -> Context:
        group = dist.group.WORLD
        assert group is not None
        return Context(
            rank=group.rank(),
            size=group.size(),
            local_rank=group.rank(),
            node_rank=0,
            device=torch.device("cpu"),
            group=group,
            source="test",
            transport=GroupTransport(group, torch.device("cpu"), batched=True),
        )


def both_ways_and_back(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    x = torch.full((40_000,), float(rank), requires_grad=True)
    received = exchange.exchange(to_left=[x, torch.ones(2)], to_right=x)
    loss = (received.from_left * 3 + received.from_right[0] * 5 * (rank + 1)).sum()
    exchange.join(loss).backward()
    assert received.from_left.eq((rank - 1) % size).all()
    assert received.from_right[0].eq((rank + 1) % size).all()
    assert x.grad is not None
    return bool(x.grad.eq(3 + 5 * ((rank - 1) % size + 1)).all())


@pytest.mark.ranks(1, 2, 3)
def test_one_work_per_message_of_a_batch_is_waited_for() -> None:
    """C38: the number of Works differs by backend. zhuzilin/ring-flash-attention#39,
    pytorch/pytorch#82450."""
    assert both_ways_and_back(InBatches())


@pytest.mark.parametrize("size", SIZES)
def test_one_work_for_the_whole_batch_is_waited_for(size: int) -> None:
    """C38: as NCCL gives it back; the simulator without tags does."""
    assert all(Simulation(size, seed=1, tags=False).run(both_ways_and_back))


def test_a_message_that_nobody_sends_is_waited_for_not_skipped() -> None:
    """C38, power: were a Work left out of the wait, this would return."""

    def program(adapter: SimulatedAdapter) -> None:
        if adapter.rank == 0:
            Exchange(Ring, adapter).shift(torch.ones(1))

    with pytest.raises(ExchangeMismatch, match=r"rank 0 of 2 waits for rank 1"):
        Simulation(2, tags=False).run(program)
