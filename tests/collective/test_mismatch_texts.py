"""What ranks are told when one of them calls a collective operation otherwise: short, and true."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter
from collectives.errors import ExchangeMismatch
from collectives.testing import simulate
from collectives.testing.pool import RankPool

CALLS: dict[str, Callable[[Exchange, Tensor], object]] = {
    "all_gather": lambda exchange, x: exchange.all_gather(x, shapes="same"),
    "all_reduce": lambda exchange, x: exchange.all_reduce(x),
    "all_reduce of a dict": lambda exchange, x: exchange.all_reduce({"a": x}),
    "reduce_scatter": lambda exchange, x: exchange.reduce_scatter(x),
    "all_to_all": lambda exchange, x: exchange.all_to_all(x, shapes="same"),
    "broadcast": lambda exchange, x: exchange.broadcast(x, source=1),
    "neighbor_allreduce": lambda exchange, x: exchange.neighbor_allreduce(x),
    "gossip_": lambda exchange, x: exchange.gossip_([x]),
}


def one_has_more(adapter: Adapter, name: str) -> None:
    exchange = Exchange(Ring, adapter)
    CALLS[name](exchange, torch.zeros(3, 4 if exchange.rank == 1 else 2))


@pytest.mark.parametrize("name", CALLS)
def test_a_shape_of_one_rank_is_the_only_difference_and_no_list_is_invented(name: str) -> None:
    with pytest.raises(ExchangeMismatch) as caught:
        simulate(3, one_has_more, name)
    text = str(caught.value)
    assert " as list(" not in text
    assert re.search(r"[ ,|(]\(\)", text) is None
    (said, *_) = re.findall(r"differ in (.*)", text)
    # gossip_ has the number of its elements among its arguments.
    assert said.startswith("op: gossip_(" if name == "gossip_" else "tensors: ")
    assert len(said) < 200


def uneven(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    exchange.all_reduce(torch.zeros(3), op="max" if exchange.rank == 1 else "sum")


def test_what_is_alike_is_not_named_beside_what_differs() -> None:
    with pytest.raises(ExchangeMismatch) as caught:
        simulate(3, uneven)
    difference = "rank 0 / rank 1 differ in op: all_reduce(op='sum') / all_reduce(op='max')\n"
    assert difference in str(caught.value)


def on_a_rank() -> str:
    exchange = Exchange(Ring, RawDDPAdapter())
    with pytest.raises(ExchangeMismatch) as caught:
        exchange.all_reduce(torch.zeros(4 if exchange.rank == 1 else 3))
    return str(caught.value)


def test_ranks_are_told_in_the_first_lines(rank_pool: RankPool) -> None:
    texts = rank_pool.run(on_a_rank, size=3)
    rank_pool.discard()
    difference = re.compile(r"tensors: \(float32\[\d\]\) on 3 edges / \(float32\[\d\]\) on 3 edges")
    for text in texts:
        found = difference.search(text)
        assert found is not None, text
        assert found.start() < 300, text
