"""The training loop that most faults happen in, and how it goes wrong on one rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Received, Ring
from collectives.topology import Topology

from .player import Player

__all__ = ["Loop", "loop"]

_Shape = tuple[int, ...]


@dataclass
class Loop:
    """One rank, at one step."""

    player: Player
    adapter: RawDDPAdapter
    exchange: Exchange
    shape: _Shape
    step: int = 0

    def both_ways(
        self,
        *,
        shape: _Shape | None = None,
        dtype: torch.dtype = torch.float32,
        over: Exchange | None = None,
        plus: int = 0,
    ) -> None:
        """Exchange with both neighbours, and check what arrives.

        Args:
            shape: Of what is sent.
            dtype: Likewise.
            over: Another Exchange.
            plus: Added to what is sent, and expected to be added to what arrives.
        """
        exchange = self.exchange if over is None else over
        left, right = self.payload(shape, dtype)
        received = exchange.exchange(to_left=left + plus, to_right=right + plus)
        self.check(received, plus)

    def payload(
        self, shape: _Shape | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what goes to the left and to the right at this step."""
        rank = self.exchange.rank
        left, right = (payload(self.step, rank, side) for side in (0, 1))
        shape = self.shape if shape is None else shape
        return torch.full(shape, left, dtype=dtype), torch.full(shape, right, dtype=dtype)

    def check(self, received: Received[torch.Tensor, torch.Tensor], plus: int = 0) -> None:
        """Tell the director of values that are not what the neighbours sent at this step."""
        rank, size = self.exchange.rank, self.exchange.size
        from_left, from_right = received
        for got, peer, side in ((from_left, rank - 1, 1), (from_right, rank + 1, 0)):
            if not bool((got == payload(self.step, peer % size, side) + plus).all()):
                self.player.tell("corrupt", step=self.step, rank=peer % size)

    def another(
        self, *, topology: Topology | Callable[[int], Topology] = Ring, name: str = "kv"
    ) -> Exchange:
        """Make another Exchange over the same group."""
        return self.player.exchange(self.adapter, topology, name)


def loop(
    instead: Callable[[Loop], object] = Loop.both_ways,
    *,
    usually: Callable[[Loop], object] = Loop.both_ways,
    by: int = 2,
    steps: int = 8,
    at: int = 4,
    shape: _Shape = (64,),
    block: bool = False,
) -> Callable[[Player], None]:
    """Return the program of a loop that goes wrong once.

    Args:
        instead: What one rank does at one step, in place of
        usually: what every rank does at every step.
        by: That rank.
        steps: How many there are.
        at: That step.
        shape: Of what travels.
        block: Inside ``with exchange:``, which tells the peers of an exception.
    """

    def program(player: Player) -> None:
        with player.joined() as adapter:
            here = Loop(player, adapter, player.exchange(adapter), shape)
            with here.exchange if block else nullcontext():
                for here.step in range(steps):
                    here.exchange.mark_step(here.step)
                    if here.step == at and player.number == by:
                        player.fault()
                        instead(here)
                    else:
                        usually(here)

    return program


def payload(step: int, rank: int, side: int) -> int:
    """Return the value that a rank sends to its left (side 0) or right (1); exact in float32."""
    return step * 100 + rank * 10 + side
