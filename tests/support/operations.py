"""Every operation of an Exchange over a ring, as a function of one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from collectives import even_steps

__all__ = ["OPERATIONS", "Operation"]

Operation = Callable[[Any, Tensor], Tensor]


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


OPERATIONS: dict[str, Operation] = {
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
