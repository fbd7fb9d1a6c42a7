"""The operator that stands in compiled graphs: one exchange, forward or backward.

``collectives::exchange`` takes the tensors that leave, and gives those that arrive, through all
lanes. With them go a token, which is that of :mod:`collectives.chain`, and a ticket: the number of
the exchange, which the backward needs. Each exchange takes the ticket of the one before it. So what
compilers see is a plain function whose order follows from its arguments.

It is never used in eager mode, where it costs ten times as much and has no forward mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx.node import has_side_effect

from ..call import MOST_CALLS, Call
from ..chain import Record
from ..checks import check_fill, check_lanes, plain
from ..deadline import Deadline, deadline_of
from ..flight import Flight
from ..messages import Leaf
from ..prepare import begin
from ..tracing import untraced
from .live import find
from .script import Kind, Script, differentiable

if TYPE_CHECKING:
    from ..binding import Binding

__all__ = ["exchange_op"]

SCHEMA = "(Tensor[] sent, Tensor? token, Tensor? ticket, SymInt[] sizes, str script) -> Tensor[]"


def _run(
    sent: Sequence[Tensor],
    token: Tensor | None,
    ticket: Tensor | None,
    sizes: Sequence[int],
    script: str,
) -> list[Tensor]:
    del token  # only an order
    said = Script.parse(script)
    binding = find(said)
    if said.phase:
        assert ticket is not None
        flight = _backward(binding, said, script, sent, sizes, int(ticket))
    else:
        flight = _forward(binding, said, script, sent, sizes)
    arrived = flight.now(sent)
    with torch.inference_mode(mode=False):  # it goes from region to region, of all modes
        number = torch.tensor([flight.sequence], device="cpu")
        return [torch.empty(0, device="cpu"), number, *arrived]


def _forward(
    binding: Binding, said: Script, script: str, sent: Sequence[Tensor], sizes: Sequence[int]
) -> Flight:
    begin(binding)
    deadline = binding.deadline if said.timeout is None else deadline_of(said.timeout)
    call = _call(binding, said, script, sent, sizes, deadline)
    if type(said.fill) is not int or said.fill:
        check_fill(binding, call, said.fill)  # type: ignore[arg-type]  # refuses what is none
    sequence = binding.engine.state.next_sequence()
    record = Record(said.op, said.place, wanted=said.wanted)
    if said.chained:
        binding.engine.state.chain.link_compiled(record, sequence)
    return Flight(binding.engine, call, sequence, deadline, None, said.fill, record)  # type: ignore[arg-type]


def _backward(
    binding: Binding,
    said: Script,
    script: str,
    sent: Sequence[Tensor],
    sizes: Sequence[int],
    sequence: int,
) -> Flight:
    deadline = binding.deadline if said.timeout is None else deadline_of(said.timeout)
    call = _call(binding, said, script, sent, sizes, deadline)
    chain = binding.engine.state.chain
    record = chain.find(sequence)
    if record is None:
        record = Record(said.op, said.place, wanted=said.wanted)
    record.run(chain)
    return Flight(binding.engine, call, sequence, deadline, record=record)


def _call(
    binding: Binding,
    said: Script,
    script: str,
    sent: Sequence[Tensor],
    sizes: Sequence[int],
    deadline: Deadline,
) -> Call:
    """Return the call of an exchange, made where its shapes are new."""
    calls = binding.compiled
    key = (script, *(x.shape for x in sent), *sizes)
    call = calls.get(key)
    if call is None:
        for x in sent:
            plain(binding, said.op, x)
        left = iter([Leaf(tuple(x.shape), x.dtype) for x in sent])
        sends = tuple(tuple(next(left) for _ in range(count)) for count in said.sent)
        recvs, plan = said.leaves(sizes), said.plan
        check_lanes(binding, plan, sends, recvs)
        binding.prepare(deadline)
        if len(calls) >= MOST_CALLS:
            calls.clear()
        call = calls[key] = Call(
            plan,
            sends,
            recvs,
            name=binding.name,
            topology=binding.digest,
            grad=said.grad,
            phase=said.phase,
            verify=binding.verify,
            owner=binding.owner,
            trees=said.trees or None,
        )
    return call


def _fake(
    sent: Sequence[Tensor],
    token: Tensor | None,
    ticket: Tensor | None,
    sizes: Sequence[int],
    script: str,
) -> list[Tensor]:
    del sent, token, ticket
    said = Script.parse(script)
    leaves = [leaf for lane in said.leaves(sizes) for leaf in lane]
    arrived = [torch.empty(leaf.shape, dtype=leaf.dtype, device=said.device) for leaf in leaves]
    number = torch.empty(1, dtype=torch.int64, device="cpu")
    return [torch.empty(0, device="cpu"), number, *arrived]


def _setup_context(ctx: FunctionCtx, inputs: tuple[object, ...], output: Sequence[Tensor]) -> None:
    sent, token, _, sizes, script = inputs
    ctx.script, ctx.sizes, ctx.linked = script, sizes, token is not None  # type: ignore[attr-defined]
    leaves = [(x.shape, kind_of(x)) for x in cast("Sequence[Tensor]", sent)]
    ctx.leaves = leaves  # type: ignore[attr-defined]
    ctx.save_for_backward(output[1])


@untraced
def _adjoint(
    ctx: FunctionCtx, grads: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], Tensor | None, None, list[None] | None, None]:
    leaves: list[tuple[Sequence[int], Kind]] = ctx.leaves  # type: ignore[attr-defined]
    said = Script.parse(ctx.script)  # type: ignore[attr-defined]
    back = said.reverse([kind for _, kind in leaves])
    made = [leaf for lane in said.leaves(ctx.sizes) for leaf in lane]  # type: ignore[attr-defined]
    gradients = [
        torch.zeros(leaf.shape, dtype=leaf.dtype, device=said.device) if grad is None else grad
        for leaf, grad in zip(made, grads[2:], strict=True)
        if leaf.differentiable
    ]
    smooth = [i for i, (_, kind) in enumerate(leaves) if differentiable(kind)]
    sizes = [size for i in smooth for size in leaves[i][0]]
    (ticket,) = ctx.saved_tensors  # type: ignore[attr-defined]
    token, _, *arrived = exchange_op(gradients, grads[0], ticket, sizes, back.text)
    places: list[Tensor | None] = [None] * len(leaves)
    for i, gradient in zip(smooth, arrived, strict=True):
        places[i] = gradient
    # torch takes an empty list for one of tensors, and asks for as many gradients.
    none: list[None] | None = None if ctx.sizes else []  # type: ignore[attr-defined]
    return places, token if ctx.linked else None, None, none, None  # type: ignore[attr-defined]


def kind_of(x: Tensor) -> Kind:
    """Return dtype and number of dims."""
    return str(x.dtype).removeprefix("torch."), x.dim()


exchange_op = torch.library.custom_op("collectives::exchange", _run, mutates_args=(), schema=SCHEMA)
exchange_op.register_fake(_fake)
exchange_op.register_autograd(_adjoint, setup_context=_setup_context)
# Neighbours wait for it, whether or not its results are used. At import: a graph that was compiled
# before this would be found in inductor's cache without it.
has_side_effect(torch.ops.collectives.exchange.default)
