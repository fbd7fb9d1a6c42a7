"""A carry that goes through all blocks, for what cannot be summed (the softmax of ring attention).

Backward needs the carry before each round, so those are kept: as many as there are blocks, each of
the size of a result. The blocks are not: they come again, in the opposite order, which is that of
the other way round the ring. A block's gradient goes with it, and both arrive at home together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..trees import flatten, unflatten
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

__all__ = ["scan"]


def scan(
    binding: Binding,
    track: Track,
    fn: Callable[..., object],
    trees: Sequence[object],
    params: Sequence[Tensor],
    options: Options,
) -> object:
    """Return the last ``carry = fn(source, carry, block, *args)``.

    Args:
        binding: Of the Exchange.
        track: Along which the blocks travel.
        fn: Of the user.
        trees: The first carry, the block, and the args.
        params: That ``fn`` has by closure.
        options: Of the hops.
    """
    body = Body(options.op, binding, fn, trees, params)
    _, body.result = flatten(trees[0], options.op)
    outputs = _Scan(binding, track, body, options).run()
    return unflatten(body.result, outputs)


class _Scan(Loop):
    random: list[Random]  # before each round

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        carry, block, args = self._split(tensors)
        kept: list[Tensor] = []
        self.random = []
        for source, leaves in circulate(self.binding, self.track, block, self.options):
            if source is None:
                continue
            inputs = [*carry, *leaves, *args]
            if not self.recomputed:
                carry = self._checked(self._computed(source, inputs))
                continue
            if self.random:
                kept += carry  # the first is among the tensors
            self._note_random()
            first = len(self.random) == 1
            after = self._traced(source, inputs) if first else self._computed(source, inputs)
            carry = self._checked(after)
        return carry, kept

    def _traced(self, source: int, inputs: list[Tensor]) -> list[Tensor] | None:
        """Compute the first round, and see what it captures."""
        outputs, _ = self.body.traced(source, inputs, [differentiable(x) for x in inputs])
        return None if outputs is None else [y.detach() for y in outputs]

    def _computed(self, source: int, inputs: list[Tensor]) -> list[Tensor] | None:
        with self.body.surroundings.entered(grad=torch.is_grad_enabled()):
            return self.body(source, inputs)

    def _checked(self, outputs: list[Tensor] | None) -> list[Tensor]:
        if outputs is None or len(outputs) != len(self.body.given[0]):
            raise ArgumentError(
                f"{self.options.op}: fn must return the next carry {self.binding.here}, got None;"
                " return the carry as it is where a block is skipped"
            )
        return outputs

    def _note_random(self) -> None:
        now = self.body.surroundings.random()
        last = self.random[-1] if self.random else now
        unchanged = all(map(torch.equal, now, last))
        self.random.append(last if unchanged else now)  # most functions draw no random numbers

    def backward(
        self,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> Row:
        carry, block, args = self._split(tensors)
        width, count = len(carry), len(block)
        rounds = _Rounds(self, [*carry, *kept], args, wanted[width + count : len(tensors)], grads)
        track = self.track.closed().mirrored()
        options = replace(self.options, op=f"{self.options.op} backward")
        homeward = Homeward(self.binding, track, options)
        for hop, (_, leaves) in enumerate(circulate(self.binding, track, block, options)):
            if hop:  # the own block was the first, so it is the last now
                homeward.pass_on(leaves, rounds.pull(track.extent - hop, leaves))
        own = homeward.arrive(block, rounds.pull(0, block))
        return [*rounds.grads, *own, *rounds.totals]

    def _split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        width, count = (len(row) for row in self.body.given[:2])
        return (
            list(tensors[:width]),
            list(tensors[width : width + count]),
            list(tensors[width + count :]),
        )


class _Rounds:
    """Backward through the rounds, the last one first.

    Args:
        scan: Whose rounds they are.
        carries: Before each round, one after the other.
        args: Of every round.
        wanted: Which of them need a gradient.
        grads: Of the last carry; then of the carry before each round.
    """

    def __init__(
        self,
        scan: _Scan,
        carries: list[Tensor],
        args: list[Tensor],
        wanted: Sequence[bool],
        grads: Sequence[Tensor | None],
    ) -> None:
        self._scan, self._carries, self._args = scan, carries, args
        self._wanted = wanted
        self.grads: Row = list(grads)
        self.totals: Row = [None] * (len(args) + len(scan.body.params))

    def pull(self, hop: int, block: Sequence[Tensor]) -> Row:
        """Go back through the round with the block of that many hops; return its gradients."""
        source, count = self._scan.track.source(hop), len(block)
        if source is None:  # from beyond an open end: there was no such round
            return [None] * count
        body, width = self._scan.body, len(self.grads)
        carry = self._carries[hop * width : (hop + 1) * width]
        inputs = [*carry, *block, *self._args]
        asked = [*map(differentiable, (*carry, *block)), *self._wanted]
        with body.surroundings.replayed(self._scan.random[hop]):
            pulled = body.pull(source, inputs, asked, self.grads)
        self.grads = pulled.inputs[:width]
        self.totals = add(self.totals, [*pulled.inputs[width + count :], *pulled.params])
        return pulled.inputs[width : width + count]
