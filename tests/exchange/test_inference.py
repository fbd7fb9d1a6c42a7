"""Inference mode and training take turns: neither leaves anything behind that the other meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring, even_steps

LARGE = 300_000  # float64: received into memory that is used again, and sent round a ring


def folded(exchange: Any, x: Tensor) -> Tensor:
    total: Tensor = exchange.ring_fold(lambda _, block, mine: block * mine, x, x)
    return total


def scanned(exchange: Any, x: Tensor) -> Tensor:
    total: Tensor = exchange.ring_scan(lambda _, carry, block: carry + block * 2, x, x)
    return total


def passed(exchange: Any, x: Tensor) -> Tensor:
    return torch.stack([block * source for source, block in exchange.ring_pass(x)]).sum(0)


def gossiped(exchange: Any, x: Tensor) -> Tensor:
    kept = x.detach().clone()
    exchange.gossip_([kept])
    return x * kept


def stepped(exchange: Any, x: Tensor) -> Tensor:
    return torch.stack([x * number for number in even_steps(range(3), exchange)]).sum(0)


OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "shift": lambda e, x: e.shift(x),
    "a tree": lambda e, x: sum(e.shift([x, x * 2, x.float()])),
    "start_shift": lambda e, x: e.start_shift(x).wait(),
    "exchange": lambda e, x: sum(e.exchange(to_left=x, to_right=x * 2)),
    "permute": lambda e, x: e.permute(x, [(0, e.size - 1)], fill=1),
    "halo_exchange": lambda e, x: e.halo_exchange(x, {0: "ring"})[1:-1],
    "halo_reduce": lambda e, x: e.halo_reduce(x, {0: "ring"})[:1],
    "neighbor_allgather": lambda e, x: sum(e.neighbor_allgather(x)),
    "neighbor_allreduce": lambda e, x: e.neighbor_allreduce(x),
    "all_gather": lambda e, x: e.all_gather(x),
    "reduce_scatter": lambda e, x: e.reduce_scatter(x),
    "all_reduce": lambda e, x: e.all_reduce(x, "mean"),
    "all_to_all": lambda e, x: e.all_to_all(x),
    "broadcast": lambda e, x: e.broadcast(x, 0),
    "ring_pass": passed,
    "ring_fold": folded,
    "ring_scan": scanned,
    "gossip_": gossiped,
    "even_steps": stepped,
}


def in_turns(exchange: Exchange, operation: Callable[[Any, Tensor], Tensor], rows: int) -> None:
    x = torch.arange(1.0, rows + 1, dtype=torch.float64)
    for _ in range(3):  # inference mode comes first
        with torch.inference_mode():
            inferred = operation(exchange, x)
        leaf = x.clone().requires_grad_()
        trained = operation(exchange, leaf)
        exchange.join((trained * trained).sum()).backward()
        assert leaf.grad is not None
        assert inferred.is_inference()
        assert not trained.is_inference()
        assert torch.equal(inferred, trained.detach())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("rows", [6, LARGE])
def test_a_group_that_is_used_first_in_inference_mode_trains_afterwards(
    name: str, rows: int
) -> None:
    in_turns(Exchange(Ring, RawDDPAdapter()), OPERATIONS[name], rows)
