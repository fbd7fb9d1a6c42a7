"""Reports of ranks that raise, never call, or go on after a failure."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ExchangeError, ExchangeTimeout, PeerLost
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support.plain import shift as plain_shift


def kv(timeout: float = 20.0) -> Exchange:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv", timeout=timeout)
    exchange.shift(torch.zeros(2, 3))
    return exchange


def last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


@pytest.mark.ranks(2, 3, 5)
def test_a_rank_that_raises_is_named_to_the_others_with_its_error(
    world_size: int,
) -> None:
    """C69: one rank raises. Lightning-AI/pytorch-lightning#8130,
    Lightning-AI/pytorch-lightning#11841, Lightning-AI/pytorch-lightning#8167,
    Lightning-AI/pytorch-lightning#16204, Lightning-AI/pytorch-lightning#20806."""

    def program() -> None:
        with kv() as exchange:
            if last_rank():
                raise ValueError("bad batch")
            for _ in range(world_size):
                exchange.shift(torch.zeros(2, 3))

    began = time.monotonic()
    with pytest.raises(ValueError if last_rank() else PeerLost, match="bad batch") as caught:
        program()
    if not last_rank():
        assert f"rank {world_size - 1} raised ValueError: bad batch" in str(caught.value)
        assert "shift(offset=1, axis='ring') of 'kv'" in str(caught.value)
        assert time.monotonic() - began < 10  # of 20 s


def leave_with_0() -> None:
    exchange = kv()
    if last_rank():
        os._exit(0)
    exchange.shift(torch.zeros(2, 3))


def test_a_rank_that_ends_with_exit_code_0_is_lost(rank_pool: RankPool) -> None:
    """C69, the process ends."""
    with pytest.raises(RanksFailedError) as caught:
        rank_pool.run(leave_with_0, size=2)
    assert "rank 1 of 2 exited with status 0" in str(caught.value)
    assert "rank 0 failed after it: collectives.errors.PeerLost: exchange #2" in str(caught.value)


@pytest.mark.ranks(2, 3)
def test_a_rank_that_never_calls_is_named_with_what_was_expected_of_it(
    world_size: int,
) -> None:
    """C70: a rank never calls. pytorch/gloo#511, pytorch/gloo#520, pytorch/gloo#444."""
    exchange = kv(timeout=1.0)
    dist.barrier()
    if last_rank():
        time.sleep(3.0)
        return
    with pytest.raises(ExchangeTimeout) as caught:
        exchange.exchange(to_left=torch.zeros(2, 3), to_right=torch.zeros(2, 3))
    text = str(caught.value)
    assert f"got no answer from rank {world_size - 1}" in text
    assert "exchange(axis='ring') of 'kv'" in text
    assert "float32[2, 3]" in text
    assert "of 1 s" in text


def plain_error() -> str:
    if last_rank():
        time.sleep(2.0)
        return ""
    work = dist.irecv(torch.zeros(2, 3), 1)
    assert work is not None
    with pytest.raises(RuntimeError) as caught:
        work.wait(timedelta(seconds=0.5))
    return str(caught.value)


def test_the_plain_form_names_no_rank_and_no_tensor(rank_pool: RankPool) -> None:
    """C70, the control."""
    text = rank_pool.run(plain_error, size=2)[0]
    rank_pool.discard()
    assert "Timed out waiting 500ms for recv" in text
    assert "rank" not in text
    assert "2, 3" not in text


@pytest.mark.ranks(2, 3)
def test_after_a_timeout_the_group_says_why_it_cannot_be_used(rank: int) -> None:
    """C71: nothing works after a timeout. pytorch/gloo#511, pytorch/gloo#520."""
    exchange = kv(timeout=1.0)
    dist.barrier()
    if last_rank():
        time.sleep(3.0)
    else:
        with pytest.raises(ExchangeTimeout):
            exchange.exchange(to_left=torch.zeros(2, 3), to_right=torch.zeros(2, 3))
        began = time.monotonic()
        with pytest.raises(ExchangeError, match=r"cannot be used any more .* because .*exchange"):
            exchange.shift(torch.zeros(2, 3))
        assert time.monotonic() - began < 0.5
    exchange.renew(timeout=20.0)
    assert exchange.shift(torch.tensor(rank)) == (rank - 1) % exchange.size


@pytest.mark.ranks(2)
def test_the_plain_form_says_pair_closure_after_a_timeout(rank: int) -> None:
    """C71, the control."""
    plain_shift(torch.zeros(2))
    if rank == 1:
        time.sleep(1.0)
        return
    work = dist.irecv(torch.zeros(2), 1)
    assert work is not None
    with pytest.raises(RuntimeError, match="Timed out"):
        work.wait(timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match=r"pair closure|Connection closed"):
        plain_shift(torch.zeros(2))
