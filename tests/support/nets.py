"""Small modules that exchange, on ranks or in one process that holds the rows of all ranks.

There ``Whole`` stands for the Exchange: ranks are the first dimension of every tensor, and what
would travel is moved by ``torch.roll``: plain torch, without any exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from collectives import Exchange, Received

__all__ = [
    "Checkpointed",
    "Folding",
    "Moves",
    "Net",
    "Overlapping",
    "Reentrant",
    "Skipping",
    "Whole",
    "evaluate",
    "loss_of",
    "rows_of",
]

ROWS, WIDTH = 3, 4


class Whole:
    """Moves the rows of all ranks at once; has the operations of an Exchange that are used here."""

    def __init__(self, size: int) -> None:
        self.rank = torch.arange(size).reshape(size, 1, 1)
        self.size = size

    def shift(self, tensor: Tensor) -> Tensor:
        return tensor.roll(1, 0)

    def start_shift(self, tensor: Tensor) -> Whole:
        self.shifted = self.shift(tensor)
        return self

    def wait(self) -> Tensor:
        return self.shifted

    def ring_fold(
        self, fn: Callable[..., Tensor], tree: Tensor, *args: Tensor, params: Iterable[nn.Module]
    ) -> Tensor:
        del params
        terms = [fn(0, tree.roll(offset, 0), *args) for offset in range(self.size)]
        return torch.stack(terms).sum(0)

    def exchange(self, *, to_left: Tensor, to_right: Tensor) -> Received[Tensor, Tensor]:
        return Received(from_left=to_right.roll(1, 0), from_right=to_left.roll(-1, 0))

    def all_reduce(self, tensor: Tensor, op: str) -> Tensor:
        del op
        return tensor  # the mean over all ranks' rows already

    def join(self, loss: Tensor) -> Tensor:
        return loss


Moves = Exchange | Whole


class Net(nn.Module):
    """Exchanges inside of its forward, which is inside of DDP's."""

    def __init__(self, moves: Moves) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.encoder = nn.Linear(WIDTH, 3)
            self.head = nn.Linear(3, 2)
        self.moves = moves

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.encoder(rows).tanh()
        made: Tensor = self.head(hidden + self.moves.shift(hidden) / 2)
        return made


class Checkpointed(Net):
    """Computes its forward again in backward, the exchange included."""

    reentrant = False

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = checkpoint(super().forward, rows, use_reentrant=self.reentrant)
        return made


class Reentrant(Checkpointed):
    """By the older form of checkpoints, which needs an input that requires grad."""

    reentrant = True

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.requires_grad_())


class Skipping(Net):
    """Has a layer that only odd ranks use."""

    def __init__(self, moves: Moves) -> None:
        super().__init__(moves)
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.extra = nn.Linear(2, 2)

    def forward(self, rows: Tensor) -> Tensor:
        made, odd = super().forward(rows), self.moves.rank % 2
        if isinstance(odd, int) and not odd:
            return made
        more: Tensor = made + odd * self.extra(made)
        return more


class Overlapping(Net):
    """Computes while what it exchanges is on its way."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.encoder(rows).tanh()
        pending = self.moves.start_shift(hidden)
        made: Tensor = self.head(hidden) + self.head(pending.wait()) / 2
        return made


class Folding(Net):
    """Goes round the ring by ``ring_fold``, which computes its terms again in backward."""

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.encoder(rows).tanh()

        def term(_: int, block: Tensor, mine: Tensor) -> Tensor:
            made: Tensor = self.head(block * mine)
            return made

        made: Tensor = self.moves.ring_fold(term, hidden, hidden, params=[self.head])
        return made


def loss_of(mine: Tensor, moves: Moves) -> Tensor:
    """Use what comes from both sides: outside of the module's forward."""
    sides = moves.exchange(to_left=mine * 2, to_right=mine.exp())
    return moves.join((mine * sides.from_right + mine.tanh() * sides.from_left).mean())


def rows_of(number: int, moves: Moves) -> Tensor:
    """Return batch ``number`` in float64: that of this rank, or those of all ranks."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(4, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return rows[: moves.size] if isinstance(moves, Whole) else rows[moves.rank]


def evaluate(net: Net, number: int = 99) -> Tensor:
    """Return the loss on a batch: the mean over all ranks, on every rank."""
    with torch.no_grad():
        loss = loss_of(net(rows_of(number, net.moves)), net.moves)
        mean: Tensor = net.moves.all_reduce(loss, "mean")
    return mean
