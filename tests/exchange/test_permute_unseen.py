"""What cannot be noticed, as the README says: other pairs where no message is sent or awaited."""

from __future__ import annotations

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter
from collectives.errors import ExchangeMismatch
from collectives.signature import Verify
from collectives.testing import simulate
from collectives.testing.pool import RankPool

Values = tuple[float, float]


def permuted(adapter: Adapter, of_rank_2: tuple[int, int], verify: Verify) -> Values:
    exchange = Exchange(Ring, adapter, verify=verify)
    mine = torch.tensor([float(exchange.rank)])
    pairs = [of_rank_2 if exchange.rank == 2 else (0, 1)]
    return exchange.permute(mine, pairs, fill=-1).item(), exchange.shift(mine).item()


def on_a_rank(verify: Verify) -> Values:
    return permuted(RawDDPAdapter(), (1, 0), verify)


@pytest.mark.parametrize("verify", ["auto", "always"])
def test_other_pairs_of_a_rank_that_nobody_hears_of_change_nothing(
    verify: Verify, rank_pool: RankPool
) -> None:
    expected = [(-1.0, 2.0), (0.0, 0.0), (-1.0, 1.0)]
    assert simulate(3, permuted, (1, 0), verify) == expected
    assert rank_pool.run(on_a_rank, verify, size=3) == expected


def test_other_pairs_of_a_rank_that_waits_for_another_are_told() -> None:
    with pytest.raises(ExchangeMismatch):
        simulate(3, permuted, (0, 2), "auto")
