"""The sum of a function over all blocks, with memory that does not grow with their number.

In backward each block travels with its gradient: every rank adds its own term's, and after the
last hop both are at home. The gradient goes one hop behind, so that it and the next block are both
on their way while a term is computed. On an open track it goes round all the same, through ranks
that have nothing to add.

The first terms may be kept: they are then ordinary terms of the caller's graph, their hops ordinary
exchanges, and the node begins with the last block that they used. Its gradient comes home all the
same, since the ring closes at its owner.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..autograd import join
from ..chain import inside_backward
from ..errors import ArgumentError
from ..trees import unflatten
from .body import Body, Row, add, differentiable, own_memory
from .homeward import Homeward
from .passing import circulate
from .recompute import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..binding import Binding
    from .passing import Options
    from .replay import Random
    from .track import Track

__all__ = ["fold"]

Blocks = Generator[tuple[int | None, Sequence[Tensor]], None, None]


def fold(
    binding: Binding,
    track: Track,
    fn: Callable[..., object],
    trees: Sequence[object],
    params: Sequence[Tensor],
    options: Options,
    keep: int,
) -> object:
    """Return the sum of ``fn(source, block, *args)``.

    Args:
        binding: Of the Exchange.
        track: Along which the blocks travel.
        fn: Of the user.
        trees: The block and the args.
        params: That ``fn`` has by closure.
        options: Of the hops.
        keep: Terms that backward does not compute again.
    """
    body = Body(options.op, binding, fn, trees, params)
    outputs = _Fold(binding, track, body, options, keep).run()
    assert body.result is not None
    return unflatten(body.result, outputs)


class _Fold(Loop):
    random: Random | None = None  # before the first term that is computed again

    def __init__(
        self, binding: Binding, track: Track, body: Body, options: Options, keep: int
    ) -> None:
        super().__init__(binding, track, body, options)
        self._keep = min(keep, track.extent)
        self._begin: Sequence[Tensor] = ()  # the last block of the terms that are kept
        self._blocks: Blocks | None = None  # that are left after them

    def run(self) -> list[Tensor]:
        if not self._keep or not self.differentiated:
            return super().run()
        block = self.body.given[0]
        blocks = self._blocks = circulate(
            self.binding, self.track, block, self.options, graded=self._keep - 1
        )
        whole = 1 < self._keep == self.track.extent  # an ordinary loop
        try:
            kept = self._kept(blocks)
            token, rest = (self._last_token(), []) if whole else self.recorded()
        finally:
            blocks.close()  # where a term raised: other ranks run all hops
        if rest:
            return rest if kept is None else self._sum(kept, rest)
        if kept is None:
            raise self._nothing()
        # Backward must run the node, or the hops, all the same: other ranks have terms in theirs.
        return [join(y, token) for y in own_memory(kept, self.inputs)]

    def _last_token(self) -> Tensor:
        chain = self.binding.engine.state.chain
        return chain.root if inside_backward() else chain.token

    def _kept(self, blocks: Blocks) -> list[Tensor] | None:
        """Return the sum of the terms that are kept, in the caller's graph."""
        args = [x for row in self.body.given[1:] for x in row]
        totals: list[Tensor] | None = None
        for hop in range(self._keep):
            source, self._begin = next(blocks)
            if source is None:
                continue
            inputs, surroundings = [*self._begin, *args], self.body.surroundings
            if not hop:  # looked at for what it captures, which no kept term would lose
                term = self.body.kept(source, inputs)
            else:
                with surroundings.entered(grad=True):
                    term = self.body(source, inputs)
            if term is not None:
                totals = term if totals is None else self._sum(totals, term)
        self.random = self.body.surroundings.random()
        return totals

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        block, args = self._split(tensors)
        totals: list[Tensor] | None = None
        blocks = self._blocks or circulate(self.binding, self.track, block, self.options)
        random = self.random
        for source, leaves in blocks:
            if source is None:
                continue
            if self.recomputed:
                term, random = self._recorded(source, [*leaves, *args], random)
            else:
                with self.body.surroundings.entered(grad=torch.is_grad_enabled()):
                    term = self.body(source, [*leaves, *args])
            if term is not None:
                totals = term if totals is None else self._sum(totals, term)
        if totals is None and self._blocks is None:
            raise self._nothing()
        return totals or [], [x.detach() for x in self._begin] if self._keep > 1 else []

    def _nothing(self) -> ArgumentError:
        return ArgumentError(
            f"{self.options.op}: fn returned None for every block {self.binding.here}; return"
            " a tensor for one of them at least, such as zeros for the own block"
        )

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
        block, args = self._split(tensors)
        first, begin = max(0, self._keep - 1), kept or block
        terms = _Terms(self, args, [*map(differentiable, block), *wanted[len(block) :]], grads)
        if self._keep == self.track.extent:
            return [*[None] * len(block), *terms.totals]
        options = replace(self.options, op=f"{self.options.op} backward")
        track = self.track.closed()
        homeward = Homeward(self.binding, track, options)
        own: Row = [None] * len(block)
        blocks = circulate(self.binding, track, begin, options, first=first)
        for hop, (_, leaves) in enumerate(blocks, first):
            if hop < self._keep:
                continue
            mine = terms.pull(self.track.source(hop), leaves)
            if hop:
                homeward.pass_on(leaves, mine)
            else:
                own = mine  # is at home
        return [*homeward.arrive(block, own), *terms.totals]

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        count = len(self.body.given[0])
        return list(tensors[:count]), list(tensors[count:])


class _Terms:
    """Backward through the terms, in their order.

    Args:
        fold: Whose terms they are.
        args: Of every term.
        wanted: Which tensors of a block, which args and which parameters need a gradient.
        grads: Of the sum.
    """

    def __init__(
        self,
        fold: _Fold,
        args: list[Tensor],
        wanted: list[bool],
        grads: Sequence[Tensor | None],
    ) -> None:
        assert fold.random is not None
        self._body, self._args, self._grads = fold.body, args, grads
        self._wanted, self._random = wanted[: len(wanted) - len(fold.body.params)], fold.random
        self.totals: Row = [None] * (len(args) + len(fold.body.params))

    def pull(self, source: int | None, block: Sequence[Tensor]) -> Row:
        """Compute a term again and return the gradients of its block."""
        count = len(block)
        if source is None:  # from beyond an open end: there was no such term
            return [None] * count
        surroundings = self._body.surroundings
        with surroundings.replayed(self._random):
            pulled = self._body.pull(source, [*block, *self._args], self._wanted, self._grads)
            self._random = surroundings.random()
        self.totals = add(self.totals, [*pulled.inputs[count:], *pulled.params])
        return pulled.inputs[:count]
