"""The adjoint: an exchange whose backward is the same exchange along the reversed plan.

Eager mode uses an old-style ``autograd.Function``; the new style, which ``torch.func`` needs, costs
four times as much and is taken only inside its transforms. Backward calls the function itself, so
that double backward is one more exchange; forward mode sends the tangents along the same plan.

The token of :mod:`collectives.chain` goes in first and comes out first. Its gradient is ``None``:
autograd then still runs the node before, which is all that the token is for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from .chain import Record, caller
from .errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call import Call, Leaf
    from .engine import Deadline, Engine
    from .flight import Flight

__all__ = ["Run", "differentiable", "join", "start_differentiable", "wanted"]

Grads = tuple[Tensor | None, ...]


@dataclass(slots=True)
class Run:
    """One execution of a call, forward and backward."""

    engine: Engine
    call: Call
    sequence: int
    deadline: Deadline
    outs: Sequence[Tensor] | None = None
    fill: float = 0
    record: Record | None = None
    flight: Flight | None = None
    returned: Sequence[Tensor] = ()

    def now(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run it, outside autograd."""
        return self.engine.run(
            self.call, inputs, self.outs, self.sequence, self.deadline, self.fill, self.record
        )

    def start(self, inputs: Sequence[Tensor]) -> Flight:
        """Start it, outside autograd."""
        return self.engine.start(
            self.call, inputs, self.outs, self.sequence, self.deadline, self.fill, self.record
        )

    def reverse(self) -> Run:
        """Return the run of the adjoint; it keeps the number of the forward."""
        return Run(
            self.engine, self.call.reverse(), self.sequence, self.deadline, record=self.record
        )

    def tangent(self) -> Run:
        """Return the run that carries the tangents; a number of its own."""
        sequence = self.engine.state.next_sequence()
        return Run(self.engine, self.call.tangent(), sequence, self.deadline)


def wanted(call: Call) -> bool:
    """Whether autograd must see the call: gradients or tangents may flow through it."""
    return bool(call.differentiable_inputs or call.differentiable_outputs) and (
        torch.is_grad_enabled() or forward_ad._current_level >= 0
    )


def differentiable(run: Run, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a call under autograd and return its outputs."""
    if torch._C._are_functorch_transforms_active():
        return _transformed(run, inputs)
    token, *outputs = _apply(_Exchange, run, _link(run, inputs), *inputs)
    run.engine.state.chain.advance(token)
    return outputs


def start_differentiable(run: Run, inputs: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
    """Start a call under autograd; the function returned finishes it.

    Two nodes, so that backward overlaps too: the backward of the second posts the adjoint, that
    of the first waits for it, and what was computed in between forward is computed in between
    backward.
    """
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        outputs = differentiable(run, inputs)  # tangents need what has arrived
        return lambda: outputs
    token, *buffers = _apply(_Start, run, _link(run, inputs), *inputs)
    chain = run.engine.state.chain
    chain.advance(token)

    def finish() -> Sequence[Tensor]:
        # The second node is an exchange of its own in the chain: others may lie in between.
        token = chain.link(Record(f"wait of {run.call.plan.op}", caller(), wanted=False))
        token, *outputs = _apply(_Wait, run, token, *buffers)
        chain.advance(token)
        return outputs

    return finish


def join(loss: Tensor, token: Tensor) -> Tensor:
    """Return ``loss``, depending on the token as well."""
    (joined,) = _apply(_Join, loss, token)
    return joined


def _apply(function: type[torch.autograd.Function], *args: object) -> tuple[Tensor, ...]:
    outputs = function.apply(*args)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _link(run: Run, inputs: Sequence[Tensor]) -> Tensor:
    needs = any(x.requires_grad for x in inputs)
    run.record = Record(run.call.plan.op, caller(), wanted=needs)
    return run.engine.state.chain.link(run.record)


def _transformed(run: Run, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    if run.outs is not None:
        raise ArgumentError(
            f"{run.call.plan.op}: out= cannot be used inside torch.func transforms (rank"
            f" {run.engine.rank} of {run.engine.size}); leave it out"
        )
    return _apply(_Transformed, run, *inputs)


def _outputs(run: Run, results: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return what a node may return: an alias of a caller's buffer, never the buffer itself.

    The alias shares the version counter, so that refilling the buffer while an older result is
    still needed for backward raises torch's own error.
    """
    return results if run.outs is None else [out.detach() for out in results]


def _mark_constants(ctx: FunctionCtx, call: Call, outputs: Sequence[Tensor]) -> None:
    if call.constant_outputs:
        ctx.mark_non_differentiable(*[outputs[i] for i in call.constant_outputs])


def _gradients(run: Run, grads: Grads) -> list[Tensor]:
    """Return the gradients of the differentiable outputs; zeros where an output was not used."""
    call, device = run.call, run.engine.device
    return [
        _single(run, grad) if (grad := grads[i]) is not None else _zeros(call.outputs[i], device)
        for i in call.differentiable_outputs
    ]


def _single(run: Run, tensor: Tensor) -> Tensor:
    """Return what came from autograd unless it stands for a batch, which has no memory to send."""
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        raise ArgumentError(
            f"{run.call.plan.op}: cannot run under vmap (rank {run.engine.rank} of"
            f" {run.engine.size}); leave vectorize=True and is_grads_batched=True out"
        )
    return tensor


def _zeros(leaf: Leaf, device: torch.device) -> Tensor:
    return torch.zeros(leaf.shape, dtype=leaf.dtype, device=device)


def _spread(indices: list[int], values: Sequence[Tensor], count: int) -> list[Tensor | None]:
    spread: list[Tensor | None] = [None] * count
    for index, value in zip(indices, values, strict=True):
        spread[index] = value
    return spread


def _adjoint(run: Run, grads: Grads) -> list[Tensor | None]:
    """Run the adjoint and return one gradient per input."""
    if run.record is not None:
        run.record.ran = True
    call, back = run.call, run.reverse()
    gradients = _gradients(run, grads)
    if torch.is_grad_enabled():  # create_graph: the adjoint is differentiated in its turn
        arrived: Sequence[Tensor] = differentiable(replace(back), gradients)
    else:
        arrived = back.now(gradients)
    return _spread(call.differentiable_inputs, arrived, len(call.inputs))


def _tangents(run: Run, tangents: Grads) -> list[Tensor | None]:
    """Send the tangents along the plan and return one per output."""
    call, device = run.call, run.engine.device
    leaves = [
        _single(run, t) if (t := tangents[i]) is not None else _zeros(call.inputs[i], device)
        for i in call.differentiable_inputs
    ]
    forward = run.tangent()
    arrived = differentiable(forward, leaves) if wanted(forward.call) else forward.now(leaves)
    return _spread(call.differentiable_outputs, arrived, len(call.outputs))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, run: Run, token: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        outputs = _outputs(run, run.now(inputs))
        _mark_constants(ctx, run.call, outputs)
        return (token.detach(), *outputs)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run  # type: ignore[attr-defined]
        return (None, None, *_adjoint(run, grads[1:]))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run  # type: ignore[attr-defined]
        return (torch.zeros(()), *_tangents(run, tangents[2:]))


class _Transformed(torch.autograd.Function):
    """For torch.func: no token, since a transform owns the graph that it differentiates."""

    @staticmethod
    def forward(run: Run, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(run.now(inputs))

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
    ) -> None:
        run = ctx.run = cast("Run", inputs[0])  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        _mark_constants(ctx, run.call, output)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run  # type: ignore[attr-defined]
        gradients = _gradients(run, grads)
        arrived = _apply(_Transformed, run.reverse(), *gradients)
        return (None, *_spread(run.call.differentiable_inputs, arrived, len(run.call.inputs)))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run  # type: ignore[attr-defined]
        return tuple(_tangents(run, tangents[1:]))

    @staticmethod
    def vmap(info: object, in_dims: object, run: Run, *inputs: Tensor) -> None:
        del info, in_dims, inputs
        raise ArgumentError(
            f"{run.call.plan.op}: cannot run under vmap (rank {run.engine.rank} of"
            f" {run.engine.size}); exchange the batched tensor as a whole, outside vmap"
        )


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, run: Run, token: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        run.flight = run.start(inputs)
        outputs = _outputs(run, run.flight.results)
        _mark_constants(ctx, run.call, outputs)
        return (token.detach(), *outputs)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del grads  # they went with the adjoint that _Wait.backward posted
        run: Run = ctx.run  # type: ignore[attr-defined]
        if run.record is not None:
            run.record.ran = True
        arrived: Sequence[Tensor] = run.returned or (run.flight.wait() if run.flight else ())
        run.returned = ()
        call = run.call
        return (None, None, *_spread(call.differentiable_inputs, arrived, len(call.inputs)))


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, run: Run, token: Tensor, *buffers: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        assert run.flight is not None
        run.flight.wait()
        ctx.mark_dirty(*buffers)
        _mark_constants(ctx, run.call, buffers)
        return (token.detach(), *buffers)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run  # type: ignore[attr-defined]
        back = run.reverse()
        gradients = _gradients(run, grads[1:])
        if torch.is_grad_enabled():
            run.returned = differentiable(back, gradients)
        else:
            run.flight = back.start(gradients)
        return (None,) * (len(grads) + 1)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, loss: Tensor, token: Tensor) -> Tensor:
        del token
        ctx.set_materialize_grads(False)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx
        return (grads[0], None)
