"""The gradients of blocks on their way to the ranks that the blocks belong to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .body import Row, add, differentiable
from .passing import start_hop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..binding import Binding
    from ..pending import Pending
    from .passing import Options
    from .track import Track

__all__ = ["Homeward"]


class Homeward:
    """Gradients that follow their blocks from rank to rank.

    Whether a rank needs a gradient for its own block is not known to the others: all that can have
    one, has one, and zeros travel where a rank has nothing to add.

    Args:
        binding: Of the Exchange.
        track: Closed, along which the blocks travel.
        options: Of the loop.
    """

    def __init__(self, binding: Binding, track: Track, options: Options) -> None:
        self._binding, self._lane = binding, track.relay(1)
        self._options = replace(options, op=f"{options.op}, gradients")
        self._pending: Pending[list[Tensor]] | None = None
        self._hop = 0

    def pass_on(self, block: Sequence[Tensor], mine: Sequence[Tensor | None]) -> None:
        """Add this rank's gradients of the block that it has, and start to hand on the sum.

        Args:
            block: That it has.
            mine: One for each tensor of it.
        """
        total = self._sum(block, mine)
        if total:
            self._hop += 1
            self._pending = start_hop(self._binding, self._lane, total, self._options, self._hop)

    def arrive(self, block: Sequence[Tensor], mine: Sequence[Tensor | None] | None = None) -> Row:
        """Return the gradients of this rank's own block, for each tensor of it.

        Args:
            block: Of this rank.
            mine: What this rank adds to what arrives.
        """
        total = iter(self._sum(block, [None] * len(block) if mine is None else mine))
        return [next(total) if differentiable(x) else None for x in block]

    def _sum(self, block: Sequence[Tensor], mine: Sequence[Tensor | None]) -> list[Tensor]:
        places = [i for i, x in enumerate(block) if differentiable(x)]
        if not places:
            return []
        own = [mine[i] for i in places]
        if self._pending is not None:
            arrived, self._pending = self._pending.wait(), None
            own = add(arrived, own)
        return [
            torch.zeros_like(block[i]) if g is None else g for i, g in zip(places, own, strict=True)
        ]
