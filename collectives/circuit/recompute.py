"""One autograd node for a whole loop: nothing of its rounds is kept, backward runs them again.

In forward the rounds run without a graph; the node keeps what went in. In backward the blocks go
round once more, each round is computed again with a graph of its own, and that is all that is
alive at a time: what autograd saves does not grow with the number of ranks.

The node takes the token of :mod:`collectives.chain` like any exchange, so that what was exchanged
before it runs backward after it, on all ranks. Its own hops are no part of the chain: all ranks
run all of them, whatever the function makes of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from ..autograd import unpack
from ..chain import Record, calling_place
from ..errors import ArgumentError
from ..tracing import untraced
from ..transforms import transformed
from .body import Row, differentiable, own_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..binding import Binding
    from .body import Body
    from .passing import Options
    from .track import Track

__all__ = ["Loop"]


class Loop(ABC):
    """A loop over all blocks, and its backward.

    Args:
        binding: Of the Exchange.
        track: Along which the blocks travel.
        body: Of the loop.
        options: Of the hops.
    """

    def __init__(self, binding: Binding, track: Track, body: Body, options: Options) -> None:
        self.binding, self.track, self.body, self.options = binding, track, body, options
        self.recomputed = False
        self.record = Record(options.op, None, wanted=False)

    @abstractmethod
    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the result, and what backward needs beside what the body was given."""

    @abstractmethod
    def backward(
        self,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        wanted: Sequence[bool],
    ) -> Row:
        """Return one gradient for each tensor that the body was given, then for each parameter.

        Args:
            tensors: What the body was given.
            kept: What :meth:`forward` returned beside the result.
            grads: Of the result.
            wanted: Which tensors and parameters need one on this rank.
        """

    def run(self) -> list[Tensor]:
        """Run the loop, with a backward where there is anything to differentiate."""
        if self.differentiated:
            return self.recorded()[1]
        inputs = self.inputs
        outputs = self.forward(inputs)[0]
        # Inside a transform torch differentiates the loop itself, and tensors have no memory.
        return [y.clone() for y in outputs] if _inside() else own_memory(outputs, inputs)

    def recorded(self) -> tuple[Tensor, list[Tensor]]:
        """Run the loop as one node; return its token and its outputs."""
        self.recomputed = True
        tensors = [*self.inputs, *self.body.params]
        chain = self.binding.engine.state.chain
        wanted = any(x.requires_grad for x in tensors)
        self.record = Record(self.options.op, calling_place(), wanted=wanted)
        token = chain.link(self.record)
        try:
            token, *outputs = cast(
                "tuple[Tensor, ...]",
                _Recomputed.apply(self, token, *tensors),  # type: ignore[no-untyped-call]
            )
        except BaseException:
            chain.unlink(self.record)
            raise
        chain.advance(self.record, token)
        return token, outputs

    @property
    def inputs(self) -> list[Tensor]:
        """What the body is given in the first round."""
        return [x for row in self.body.given for x in row]

    @property
    def differentiated(self) -> bool:
        """Whether the loop has a node of its own."""
        return torch.is_grad_enabled() and not _inside()


def _inside() -> bool:
    """Whether a transform of torch is at work."""
    return transformed() or forward_ad._current_level >= 0


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, loop: Loop, token: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        inputs = tensors[: len(tensors) - len(loop.body.params)]
        results, kept = loop.forward(inputs)
        outputs = own_memory(results, inputs)
        ctx.loop, ctx.count = loop, len(inputs)  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(*[y for y in outputs if not differentiable(y)])
        # The parameters only so that torch finds out if they were changed meanwhile.
        ctx.save_for_backward(token, *tensors, *kept)
        return (token.detach(), *outputs)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        loop: Loop = ctx.loop  # type: ignore[attr-defined]
        count: int = ctx.count  # type: ignore[attr-defined]
        wanted: tuple[bool, ...] = ctx.needs_input_grad[2:]  # type: ignore[attr-defined]
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"{loop.options.op}: cannot be differentiated twice (create_graph=True)"
                f" {loop.binding.here}: its backward computes each round again and keeps no graph"
                " of it; write the loop with ring_pass, whose memory grows with the ranks"
            )
        _, *saved = unpack(ctx, loop.record, loop.binding.engine)
        tensors, kept = saved[:count], saved[len(wanted) :]
        gradients = loop.backward(tensors, kept, grads[1:], wanted)
        needed = [g if w else None for g, w in zip(gradients, wanted, strict=True)]
        return (None, None, *needed)
