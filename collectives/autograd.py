"""The adjoint: an exchange whose backward is the same exchange along the reversed plan.

Eager mode uses an old-style ``autograd.Function``; the new style, which ``torch.func`` needs, costs
four times as much and is taken only inside its transforms. Backward calls the function itself, so
that double backward is one more exchange; forward mode sends the tangents along the same plan.

The token of :mod:`collectives.chain` goes in first and comes out first. Its gradient is ``None``:
autograd then still runs the node before, which is all that the token is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from .chain import Record, calling_place
from .errors import ArgumentError, ExchangeError
from .gradients import Grads, gradients_of, mark_constants, outputs_of, single, spread, zeros
from .tracing import untraced
from .transforms import in_every_batch, transformed, with_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._functorch.autograd_function import VmapInfo

    from .call import Call
    from .chain import Chain
    from .engine import Engine
    from .flight import Flight

__all__ = ["differentiable", "join", "start_differentiable", "under_transforms", "unpack", "wanted"]


def wanted(call: Call) -> bool:
    """Whether autograd must see the call: gradients or tangents may flow through it."""
    return call.differentiable and (torch.is_grad_enabled() or forward_ad._current_level >= 0)


def differentiable(flight: Flight, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a call under autograd and return its outputs."""
    if transformed():
        return under_transforms(flight, inputs)
    chain, record = _recorded(flight, inputs)
    results = _run_exchange(flight, chain.link(record), *inputs)
    chain.advance(record, results[0])
    return results[1:]


def start_differentiable(
    flight: Flight, inputs: Sequence[Tensor]
) -> Callable[[], Sequence[Tensor]]:
    """Start a call under autograd; the function returned finishes it.

    Two nodes, so that backward overlaps too: the backward of the second posts the adjoint, that
    of the first waits for it, and what was computed in between forward is computed in between
    backward.
    """
    if transformed() or forward_ad._current_level >= 0:
        outputs = differentiable(flight, inputs)  # tangents need what has arrived
        return lambda: outputs
    chain, record = _recorded(flight, inputs)
    buffers = _apply(_Start, flight, *inputs)

    def finish() -> Sequence[Tensor]:
        # Only now is it part of the chain: a backward in between must not wait for what comes.
        token, *outputs = _apply(_Wait, flight, chain.link(record), *buffers)
        chain.advance(record, token)
        return outputs

    return finish


def join(loss: Tensor, token: Tensor) -> Tensor:
    """Return ``loss``, depending on the token as well."""
    (joined,) = _apply(_Join, loss, token)
    return joined


def _apply(function: type[torch.autograd.Function], *args: object) -> tuple[Tensor, ...]:
    outputs = function.apply(*args)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _recorded(flight: Flight, inputs: Sequence[Tensor]) -> tuple[Chain, Record]:
    wanted = False
    for x in inputs:
        if x.requires_grad:
            wanted = True
            break
    place = calling_place(inner=3)  # _recorded, differentiable and move, or their start_ forms
    record = flight.record = Record(flight.call.plan.op, place, wanted=wanted)
    return flight.engine.state.chain, record


def under_transforms(flight: Flight, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a call on tensors that torch.func has wrapped, differentiable or not."""
    if flight.outs is not None:
        raise ArgumentError(
            f"{flight.call.plan.op}: out= cannot be used inside torch.func transforms (rank"
            f" {flight.engine.rank} of {flight.engine.size}); leave it out"
        )
    return _apply(_Transformed, flight, *inputs)


def _adjoint(flight: Flight, grads: Grads) -> list[Tensor | None]:
    """Run the adjoint and return one gradient per input."""
    call, back = flight.call, flight.reverse()
    gradients = gradients_of(flight, grads)
    if torch.is_grad_enabled():  # create_graph: the adjoint is differentiated in its turn
        arrived: Sequence[Tensor] = differentiable(back, gradients)
    else:
        arrived = back.now(gradients)
    return spread(call.differentiable_inputs, arrived, len(call.inputs))


def unpack(ctx: FunctionCtx, record: Record | None, engine: Engine) -> tuple[Tensor, ...]:
    """Begin a backward, with all that other ranks do at this point; return what was saved.

    Under a checkpoint, whoever unpacks a saved tensor first computes the block again, and its
    exchanges with it. The token is saved for this alone: so a rank whose loss does not reach the
    block computes it again too, where its neighbours do.
    """
    try:
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise ExchangeError(
            f"the backward of {record} has run before and its graph is gone (rank"
            f" {engine.rank} of {engine.size}): losses that are backpropagated one by"
            " one must not share a chain, so join each where it is computed, loss ="
            " exchange.join(loss); or keep the graph with retain_graph=True"
        ) from error
    if record is not None:
        record.run(engine.state.chain)
    return saved


def _tangents(flight: Flight, tangents: Grads) -> list[Tensor | None]:
    """Send the tangents along the plan and return one per output."""
    call, device = flight.call, flight.engine.device
    leaves = in_every_batch(
        [
            single(flight, t) if (t := tangents[i]) is not None else zeros(call.inputs[i], device)
            for i in call.differentiable_inputs
        ]
    )
    forward = flight.tangent()
    arrived = differentiable(forward, leaves) if wanted(forward.call) else forward.now(leaves)
    return spread(call.differentiable_outputs, arrived, len(call.outputs))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, flight: Flight, token: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.flight = flight  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        outputs = outputs_of(flight, flight.now(inputs))
        if flight.call.constant_outputs:
            mark_constants(ctx, flight.call, outputs)
        ctx.save_for_backward(token)
        return (token.detach(), *outputs)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        unpack(ctx, flight.record, flight.engine)
        return (None, None, *_adjoint(flight, grads[1:]))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        return (torch.zeros(0, device="cpu"), *_tangents(flight, tangents[2:]))


class _Transformed(torch.autograd.Function):
    """For torch.func: no token, since a transform owns the graph that it differentiates."""

    @staticmethod
    def forward(flight: Flight, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(flight.now(inputs))

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]
    ) -> None:
        flight = ctx.flight = cast("Flight", inputs[0])  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        mark_constants(ctx, flight.call, output)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        gradients = in_every_batch(gradients_of(flight, grads))
        arrived = _apply(_Transformed, flight.reverse(), *gradients)
        return (None, *spread(flight.call.differentiable_inputs, arrived, len(flight.call.inputs)))

    @staticmethod
    def jvp(ctx: FunctionCtx, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        return tuple(_tangents(flight, tangents[1:]))

    @staticmethod
    def vmap(
        info: VmapInfo, in_dims: tuple[int | None, ...], flight: Flight, *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        whole, batches = with_batch(flight, info.batch_size, in_dims[1:], inputs)
        outputs = _apply(_Transformed, whole, *batches)
        return outputs, (0,) * len(outputs)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, flight: Flight, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        outputs = outputs_of(flight, flight.start(inputs).make_places())
        mark_constants(ctx, flight.call, outputs)
        return tuple(outputs)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del grads  # they went with the adjoint that _Wait.backward posted
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        assert flight.adjoint is not None
        arrived, flight.adjoint = flight.adjoint(), None
        return (None, *spread(flight.call.differentiable_inputs, arrived, len(flight.call.inputs)))


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, flight: Flight, token: Tensor, *buffers: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.flight = flight  # type: ignore[attr-defined]
        ctx.set_materialize_grads(False)
        flight.wait()
        ctx.mark_dirty(*buffers)
        mark_constants(ctx, flight.call, buffers)
        ctx.save_for_backward(token)
        return (token.detach(), *buffers)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flight: Flight = ctx.flight  # type: ignore[attr-defined]
        unpack(ctx, flight.record, flight.engine)
        back = flight.reverse()
        gradients = gradients_of(flight, grads[1:])
        if torch.is_grad_enabled():
            arrived = differentiable(back, gradients)
            flight.adjoint = lambda: arrived
        elif any(ctx.needs_input_grad[2:]):  # type: ignore[attr-defined]
            # Then the backward of _Start comes, and waits.
            flight.adjoint = back.start(gradients).wait
        else:
            back.now(gradients)
        return (None,) * (len(grads) + 1)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, loss: Tensor, token: Tensor) -> Tensor:
        del token
        ctx.set_materialize_grads(False)
        return loss.view_as(loss)

    @staticmethod
    @untraced
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        del ctx
        return (grads[0], None)


# What Function.apply does before it comes here (defaults for the new style, dead functorch
# wrappers) has been done or is not needed, and takes as long as the rest of it.
_run_exchange = cast(
    "Callable[..., tuple[Tensor, ...]]", super(torch.autograd.Function, _Exchange).apply
)
