"""Headers and the guard: a slow rank is never called wrong, and all ranks hear of a mismatch."""

from __future__ import annotations

import time

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch, ExchangeTimeout
from collectives.record import FlightRecord, verdict
from collectives.testing import simulate
from collectives.testing.pool import RankPool

STALL = 1.0  # seconds, unless the environment says otherwise


@pytest.mark.ranks(3)
def test_a_slow_rank_is_waited_for_while_the_others_discover(rank: int) -> None:
    """Each stage of it: headers, descriptions, payload, with other shapes and dtypes everywhere."""
    exchange = Exchange(Ring, RawDDPAdapter(), verify="always")
    dtypes = (torch.float32, torch.int64, torch.int32)
    for slow in range(3):
        if rank == slow:
            time.sleep(STALL + 0.6)
        arrived = exchange.shift(torch.ones(rank + 1, dtype=dtypes[rank]), shapes="discover")
        source = (rank - 1) % 3
        assert (arrived.shape, arrived.dtype) == ((source + 1,), dtypes[source])


@pytest.mark.ranks(3)
def test_a_rank_that_does_not_come_is_named_and_no_other(rank: int) -> None:
    """Of more messages than there are headers: which of those failed says who."""
    exchange = Exchange(Ring, RawDDPAdapter(), verify="always", timeout=2.0)
    tree = [torch.ones(30_000 + n) for n in range(6)]
    exchange.exchange(to_left=tree, to_right=tree)
    if rank == 1:
        time.sleep(4.0)
        return
    with pytest.raises(ExchangeTimeout, match=r"rank [02] got no answer from rank 1 in 2 s"):
        exchange.exchange(to_left=tree, to_right=tree)


def test_a_rank_that_meets_no_wrong_header_hears_of_it_too(rank_pool: RankPool) -> None:
    def program() -> tuple[str, float]:
        exchange = Exchange(Ring, RawDDPAdapter(), verify="always")
        exchange.shift(torch.ones(2))
        begun = time.monotonic()
        with pytest.raises(ExchangeMismatch) as caught:
            exchange.shift(torch.ones(3 if exchange.rank == 0 else 2))
        return str(caught.value), time.monotonic() - begun

    results = rank_pool.run(program, size=4)
    rank_pool.discard()
    for rank in (0, 1, 3):  # whoever broke off first may be quoted by another
        assert "is in another exchange" in results[rank][0]
        assert results[rank][1] < STALL + 1 + 2.5
    text, seconds = results[2]
    assert "is in another exchange" in text
    assert "[reported by rank " in text
    assert seconds < STALL + 1 + 2.5


def test_a_flight_record_sees_no_difference_in_shapes_that_were_discovered() -> None:
    def program(adapter: Adapter) -> FlightRecord:
        exchange = Exchange(Ring, adapter)
        dtype = torch.int64 if exchange.rank else torch.float32
        exchange.shift(torch.ones(exchange.rank, dtype=dtype), shapes="discover")
        return exchange.flight_record()

    records = simulate(3, program)
    assert [entry.phase for entry in records[0].entries] == ["discovery", "forward"]
    (sentence, *_) = verdict(records)
    assert sentence.startswith("All ranks agree, and none waits; the last exchange is #1 shift")
