"""Leaving, aborting and going on, on ranks over gloo; tests/faults has what needs processes."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import (
    ArgumentError,
    ExchangeClosed,
    ExchangeError,
    ExchangeTimeout,
    PeerLost,
    PendingDropped,
)
from collectives.guard import known_cause

SIZES = (2, 3, 5)


def ring(name: str = "kv", timeout: float = 20.0) -> Exchange:
    return Exchange(Ring, RawDDPAdapter(), name=name, timeout=timeout)


def one(rank: int) -> torch.Tensor:
    return torch.tensor([float(rank)])


def go_round(exchange: Exchange) -> None:
    """Shift once for each rank: one that is far away may finish some before it hears."""
    for _ in range(exchange.size):
        exchange.shift(torch.ones(1))


@pytest.mark.ranks(1, *SIZES)
def test_an_abort_fails_the_exchanges_of_all_ranks_and_says_why(rank: int, world_size: int) -> None:
    exchange = ring()
    exchange.shift(one(rank))
    if rank == world_size - 1:
        exchange.abort("the loss is NaN")
    began = time.monotonic()
    with pytest.raises(ExchangeError, match=f"rank {world_size - 1} aborted: the loss is NaN"):
        go_round(exchange)
    assert time.monotonic() - began < 10


@pytest.mark.ranks(2, 3)
def test_an_abort_from_another_thread_ends_a_wait(rank: int) -> None:
    exchange = ring()
    exchange.shift(one(rank))
    if rank == 0:
        threading.Timer(0.2, exchange.abort, ["enough"]).start()
        with pytest.raises(PeerLost, match="rank 0 aborted: enough"):
            exchange.shift(one(rank))
    else:
        time.sleep(1.0)


@pytest.mark.ranks(2, 3)
def test_an_abort_before_the_first_exchange_reaches_ranks_that_wait_in_theirs(rank: int) -> None:
    exchange = ring()
    if rank == 0:
        time.sleep(0.2)
        exchange.abort("no data")
    else:
        with pytest.raises(PeerLost, match=r"rank 0 .*gave up: rank 0 aborted: no data"):
            exchange.shift(one(rank))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("late", [0.0, 1.0])
def test_an_abort_while_this_rank_waits_for_the_first_exchange_of_others(
    rank: int, late: float
) -> None:
    """From another thread: it ends the wait here, and those that come later are told."""
    exchange = ring()
    timer = threading.Timer(0.3, lambda: exchange.abort("no data"))
    if rank == 0:
        timer.start()
    elif rank == 1:
        time.sleep(0.5 + late)
    with pytest.raises(PeerLost, match="rank 0 aborted: no data"):
        exchange.shift(one(rank))
    if rank == 0:
        timer.join()
    if rank == 0:
        time.sleep(late + 1.0)


@pytest.mark.ranks(1, *SIZES)
def test_an_error_in_a_with_block_stays_what_it_is_and_is_told(rank: int, world_size: int) -> None:
    culprit = rank == world_size - 1

    def program() -> None:
        with ring() as exchange:
            exchange.shift(one(rank))
            if culprit:
                raise ValueError("bad batch")
            go_round(exchange)

    with pytest.raises(ValueError if culprit else PeerLost, match="bad batch") as caught:
        program()
    assert culprit or f"rank {world_size - 1} raised ValueError: bad batch" in str(caught.value)


@pytest.mark.ranks(1, 2, 3)
def test_a_with_block_that_ends_well_closes(rank: int) -> None:
    with ring() as exchange:
        exchange.shift(one(rank))
    with pytest.raises(ExchangeClosed):
        exchange.shift(one(rank))


@pytest.mark.ranks(2, 3)
def test_a_closed_exchange_is_named_to_ranks_that_go_on(rank: int) -> None:
    exchange = ring()
    exchange.shift(one(rank))
    if rank == 0:
        exchange.close()
        time.sleep(3.0)  # alive, so that no closed connection tells it
        return
    with pytest.raises(PeerLost, match="rank 0, which closed that Exchange after 1 exchanges"):
        exchange.exchange(to_left=one(rank), to_right=one(rank))


@pytest.mark.ranks(2, 3)
def test_an_exchange_made_after_a_closed_one_raises_no_alarm(rank: int, world_size: int) -> None:
    first = ring("first")
    first.shift(one(rank))
    first.close()
    if rank == 0:
        time.sleep(2.5)  # others wait for longer than the stall limit
    second = ring("first")
    assert second.shift(one(rank)).item() == (rank - 1) % world_size


@pytest.mark.ranks(1, *SIZES)
def test_all_ranks_go_on_after_renew(rank: int, world_size: int) -> None:
    first, second = ring("first"), ring("second")
    first.shift(one(rank))
    second.shift(one(rank))
    if rank == 0:
        first.abort("to begin anew")
    with pytest.raises(ExchangeError, match="to begin anew"):
        go_round(second)
    for exchange in (first, second):
        exchange.renew(timeout=20.0)
        for _ in range(3):
            assert exchange.shift(one(rank)).item() == (rank - 1) % world_size
        x = one(rank).requires_grad_()
        exchange.join((exchange.shift(x) * (rank + 1)).sum()).backward()
        assert x.grad is not None
        assert x.grad.item() == (rank + 1) % world_size + 1
    assert ring().shift(one(rank)).item() == (rank - 1) % world_size  # a new one follows


@pytest.mark.ranks(3, timeout=60)
@pytest.mark.parametrize("members", [[0, 2], [0, 1, 2]])
def test_renewed_again_and_again(rank: int, members: list[int]) -> None:
    some = dist.new_group(members)
    if rank not in members:
        return
    exchange = Exchange(Ring, RawDDPAdapter(group=some), timeout=20.0)
    for generation in range(5):
        exchange.shift(one(rank))
        if rank == 0:
            exchange.abort(f"number {generation}")
        with pytest.raises(ExchangeError, match=f"number {generation}"):
            go_round(exchange)
        exchange.renew(timeout=20.0)
    left = members[members.index(rank) - 1]
    assert exchange.shift(one(rank)).item() == left


@pytest.mark.ranks(2, 3)
def test_renew_names_the_ranks_that_do_not_come(rank: int, world_size: int) -> None:
    exchange = ring()
    exchange.shift(one(rank))
    if rank == world_size - 1:
        exchange.abort("I go home")
        time.sleep(1.5)
        return
    with pytest.raises(ExchangeError):
        go_round(exchange)
    with pytest.raises(PeerLost, match=rf"within 1 s, but rank {world_size - 1} did not come"):
        exchange.renew(timeout=1.0)


@pytest.mark.ranks(2, 3)
def test_a_rank_that_renews_alone_is_named_to_those_that_go_on(rank: int, world_size: int) -> None:
    exchange = ring()
    exchange.shift(one(rank))
    if rank:
        with pytest.raises(PeerLost, match=r"for rank 0, which called renew\(\) after 1 exchanges"):
            go_round(exchange)
    exchange.renew(timeout=20.0)
    assert exchange.shift(one(rank)).item() == (rank - 1) % world_size


@pytest.mark.ranks(*SIZES)
def test_an_error_in_a_block_before_the_first_exchange_is_told(rank: int, world_size: int) -> None:
    culprit = world_size - 1

    def program() -> None:
        with RawDDPAdapter() as adapter:
            if rank == culprit:
                raise ValueError("no labels")
            Exchange(Ring, adapter, timeout=20.0).shift(one(rank))

    with pytest.raises(ValueError if rank == culprit else PeerLost) as caught:
        program()
    assert rank == culprit or f"rank {culprit} raised ValueError: no labels" in str(caught.value)


@pytest.mark.ranks(1, 2)
def test_renew_refuses_a_timeout_that_is_none() -> None:
    with pytest.raises(ArgumentError, match="timeout must be"):
        ring().renew(timeout=0)


@pytest.mark.ranks(2)
def test_the_watchdog_and_the_clerk_are_the_only_threads(rank: int) -> None:
    exchanges = [ring(str(n)) for n in range(5)]
    for exchange in exchanges:
        exchange.shift(one(rank))
    ours = [t.name.rpartition("-")[0] for t in threading.enumerate() if "collectives" in t.name]
    assert sorted(ours) == ["collectives-clerk", "collectives-watchdog"]


@pytest.mark.ranks(3)
def test_the_guard_of_a_destroyed_group_is_forgotten(rank: int) -> None:
    from collectives.guard import watchdog

    for _ in range(3):
        group = dist.new_group([0, 1, 2])
        Exchange(Ring, RawDDPAdapter(group=group)).shift(one(rank))
        dist.barrier()
        dist.destroy_process_group(group)
        del group
    deadline = time.monotonic() + 10
    while len(watchdog().guards()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert watchdog().guards() == []


@pytest.mark.ranks(2, 3)
def test_an_error_of_this_rank_alone_is_told_too(rank: int, world_size: int) -> None:
    culprit = rank == world_size - 1

    def program() -> None:
        with ring() as exchange:
            exchange.shift(one(rank))
            if culprit:
                exchange.start_shift(one(rank))  # thrown away
                exchange.mark_step(1)
            go_round(exchange)

    with pytest.raises(PendingDropped if culprit else PeerLost) as caught:
        program()
    assert culprit or f"rank {world_size - 1} raised PendingDropped" in str(caught.value)


@pytest.mark.ranks(2, 3)
def test_an_error_that_follows_from_another_ranks_is_not_told_as_the_cause(
    rank: int, world_size: int
) -> None:
    """As of DDP, which waits in an all-reduce for ranks that wait in an exchange."""
    stuck = rank == world_size - 1

    def program() -> None:
        with ring(timeout=1.5) as exchange:
            exchange.exchange(to_left=one(rank), to_right=one(rank))
            if stuck:
                dist.all_reduce(one(rank))
            else:
                exchange.exchange(to_left=one(rank), to_right=one(rank))

    with pytest.raises(RuntimeError if stuck else ExchangeTimeout) as caught:
        program()
    told = known_cause() if stuck else str(caught.value)
    assert "got no answer from rank" in told
    assert "raised RuntimeError" not in told
