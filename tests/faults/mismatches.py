"""Faults of programs whose ranks do not call the same exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsIndex

import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Mesh, Ring
from collectives.errors import ExchangeMismatch
from collectives.topology import Shift

from .loop import Loop, loop
from .player import Player
from .row import STALL, Expected, Row

__all__ = ["MISMATCHES"]


def mismatch(*says: str) -> Expected:
    """Return what every rank must see, those that are no neighbour of rank 2 too."""
    return Expected((ExchangeMismatch,), within=STALL + 1, says=("rank 2", *says))


class Reversed(Ring):
    """A ring whose right is everybody else's left."""

    __slots__ = ()

    def neighbours(self, rank: SupportsIndex, axis_index: int, offset: SupportsIndex) -> Shift:
        source, destination = super().neighbours(rank, axis_index, offset)
        return Shift(destination, source)

    def __repr__(self) -> str:
        return f"Reversed({self.size})"


def twice(first: str, second: str) -> Callable[[Loop], None]:
    """Return two exchanges of other names in a row."""

    def exchanges(at: Loop) -> None:
        for name in (first, second):
            at.both_ways(over=at.another(name=name), plus=ord(name))

    return exchanges


def one_extra(at: Loop) -> None:
    at.both_ways()
    at.both_ways()


def forward(at: Loop) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Exchange under grad; return the loss, and what was sent: its gradient is 1."""
    sent = [x.requires_grad_() for x in at.payload()]
    received = at.exchange.exchange(to_left=sent[0], to_right=sent[1])
    at.check(received)
    return at.exchange.join(received.from_left.sum() + received.from_right.sum()), sent


def forward_twice(at: Loop) -> None:
    forward(at)
    forward(at)


def forward_and_backward(at: Loop) -> None:
    loss, sent = forward(at)
    loss.backward()
    if not all(x.grad is not None and bool((x.grad == 1).all()) for x in sent):
        at.player.tell("corrupt", step=at.step, rank=at.exchange.rank)


def without_grad(at: Loop) -> None:
    with torch.no_grad():
        forward(at)


def at_another_step(at: Loop) -> None:
    at.exchange.mark_step(at.step + 10)
    at.both_ways()


def two_groups(player: Player) -> None:
    """Exchange over two groups at each step; once, one rank begins with the other one."""
    with player.joined() as adapter:
        at = Loop(player, adapter, player.exchange(adapter), shape=(64,))
        over = [at.exchange, player.exchange(RawDDPAdapter(dist.new_group()), name="v")]
        for at.step in range(8):
            if at.step == 4 and player.number == 2:
                player.fault()
                over.reverse()
            for exchange in over:
                exchange.mark_step(at.step)
                at.both_ways(over=exchange)


MISMATCHES = (
    Row("skip one", loop(lambda at: None), mismatch("exchange(", "step: ")),
    Row(
        "swapped order",
        loop(twice("v", "k"), usually=twice("k", "v")),
        mismatch("exchange(", "name: ", "'k'", "'v'"),
    ),
    Row("swapped order of two groups", two_groups, mismatch("two process groups", "'kv'", "'v'")),
    Row("one extra", loop(one_extra), mismatch("exchange(", "step: ")),
    Row("more bytes", loop(lambda at: at.both_ways(shape=(128,))), mismatch("tensors: ", "128")),
    Row("fewer bytes", loop(lambda at: at.both_ways(shape=(32,))), mismatch("tensors: ", "32")),
    Row("no bytes", loop(lambda at: at.both_ways(shape=(0,))), mismatch("tensors: ")),
    Row(
        "other dtype, same bytes",
        loop(lambda at: at.both_ways(dtype=torch.int32)),
        mismatch("tensors: ", "float32", "int32"),
    ),
    Row(
        "other shape, same bytes",
        loop(lambda at: at.both_ways(shape=(8, 8))),
        mismatch("tensors: ", "float32[64]", "float32[8, 8]"),
    ),
    Row(
        "other name",
        loop(lambda at: at.both_ways(over=at.another(name="other"))),
        mismatch("name: ", "kv", "other"),
    ),
    Row(
        "backward against forward",
        loop(forward_and_backward, usually=forward_twice),
        mismatch("phase: ", "forward", "backward"),
    ),
    Row(
        "no_grad on one rank",
        loop(without_grad, usually=forward),
        mismatch("grad: ", "no_grad"),
    ),
    Row(
        "ring reversed on one rank",
        loop(lambda at: at.both_ways(over=at.another(topology=Reversed))),
        mismatch("topology: ", "Ring(4)", "Reversed(4)"),
    ),
    Row(
        "other topology, same neighbours",
        loop(lambda at: at.both_ways(over=at.another(topology=Mesh((4,), periodic=True)))),
        mismatch("topology: ", "Ring(4)", "Mesh((4,), periodic=True)"),
    ),
    Row("other step", loop(at_another_step), mismatch("step: ", "14")),
)
