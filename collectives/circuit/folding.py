"""The sum of a function over all blocks, with memory that does not grow with their number.

In backward each block travels with its gradient: every rank adds its own term's, and after the
last hop both are at home. The gradient goes one hop behind, so that it and the next block are both
on their way while a term is computed. On an open track it goes round all the same, through ranks
that have nothing to add.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..trees import unflatten
from .body import Body, Row, add, differentiable
from .homeward import Homeward
from .passing import circulate
from .recompute import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..binding import Binding
    from .passing import Options
    from .replay import Random
    from .track import Track

__all__ = ["fold"]


def fold(
    binding: Binding,
    track: Track,
    fn: Callable[..., object],
    trees: Sequence[object],
    params: Sequence[Tensor],
    options: Options,
) -> object:
    """Return the sum of ``fn(source, block, *args)``; ``trees`` are the block and the args."""
    body = Body(options.op, binding, fn, trees, params)
    outputs = _Fold(binding, track, body, options).run()
    assert body.result is not None
    return unflatten(body.result, outputs)


class _Fold(Loop):
    random: Random | None = None  # before the first term

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        block, args = self._split(tensors)
        totals: list[Tensor] | None = None
        random = None
        for source, leaves in circulate(self.binding, self.track, block, self.options):
            if source is None:
                continue
            if self.recomputed:
                term, random = self._recorded(source, [*leaves, *args], random)
            else:
                with self.body.surroundings.entered(grad=torch.is_grad_enabled()):
                    term = self.body(source, [*leaves, *args])
            if term is not None:
                totals = term if totals is None else self._sum(totals, term)
        if totals is None:
            raise ArgumentError(
                f"{self.options.op}: fn returned None for every block {self.binding.here}; return"
                " a tensor for one of them at least, such as zeros for the own block"
            )
        return totals, []

    def _recorded(
        self, source: int, inputs: list[Tensor], random: Random | None
    ) -> tuple[list[Tensor] | None, Random]:
        """Compute a term that can be computed again: random numbers go on from term to term."""
        surroundings = self.body.surroundings
        if random is not None:
            surroundings.set_random(random)
            with surroundings.entered(grad=False):
                return self.body(source, inputs), surroundings.random()
        self.random = surroundings.random()
        # Only to find what it captures; the other terms are looked at when they are differentiated.
        outputs, _ = self.body.traced(source, inputs, [differentiable(x) for x in inputs])
        term = None if outputs is None else [y.detach() for y in outputs]
        return term, surroundings.random()

    def _sum(self, totals: list[Tensor], term: list[Tensor]) -> list[Tensor]:
        for total, more in zip(totals, term, strict=True):
            if total.shape != more.shape or total.dtype != more.dtype:
                raise ArgumentError(
                    f"{self.options.op}: fn must return the same shapes for every block"
                    f" {self.binding.here}: expected {tuple(total.shape)} {total.dtype}, got"
                    f" {tuple(more.shape)} {more.dtype}"
                )
        return [total + more for total, more in zip(totals, term, strict=True)]

    def backward(
        self,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> Row:
        del kept
        block, args = self._split(tensors)
        count, random = len(block), self.random
        assert random is not None
        asked = [*map(differentiable, block), *wanted[count : len(tensors)]]
        totals: Row = [None] * (len(wanted) - count)
        options = replace(self.options, op=f"{self.options.op} backward")
        track = self.track.closed()
        homeward = Homeward(self.binding, track, options)
        for hop, (_, leaves) in enumerate(circulate(self.binding, track, block, options)):
            source = self.track.source(hop)
            mine: Row = [None] * count
            if source is not None:
                inputs = [*leaves, *args]
                with self.body.surroundings.replayed(random):
                    pulled = self.body.pull(source, inputs, asked, grads)
                    random = self.body.surroundings.random()
                mine = pulled.inputs[:count]
                totals = add(totals, [*pulled.inputs[count:], *pulled.params])
            homeward.pass_on(leaves, mine)
        return [*homeward.arrive(block), *totals]

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        count = len(self.body.given[0])
        return list(tensors[:count]), list(tensors[count:])
