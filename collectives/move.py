"""From trees to a call and back: what ``shift``, ``exchange`` and ``permute`` have in common.

Everything that can be refused is refused here, before anything is posted.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from . import autograd
from .call import Call, Specs
from .chain import caller
from .checks import PLAIN, check_fill, check_lanes, check_out, is_wrapped, plain
from .deadline import deadline_of
from .errors import ArgumentError, ExchangeError, PendingDropped
from .flight import Flight
from .messages import Leaf
from .pending import Pending
from .trees import LEAF, Structure, flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .binding import Binding, Route

__all__ = ["move", "raise_left_over", "start_move"]

Trees = tuple[object, ...]
Key = tuple[object, ...]
T = TypeVar("T")
# Shapes that change at every step would fill the cache; a call costs about 50 us to make anew.
_MOST_CALLS = 256


def move(
    binding: Binding,
    route: Route,
    trees: Trees,
    like: Trees | None = None,
    out: Trees | None = None,
    fill: float = 0,
    timeout: float | None = None,
) -> Trees:
    """Send one tree down each lane of a plan; return what arrives, lane by lane.

    Args:
        binding: Of the Exchange.
        route: The plan and the calls made for it.
        trees: One for each lane.
        like: For each lane, a tree of the shapes and dtypes that arrive; default: what leaves.
        out: For each lane, a tree of buffers to write into.
        fill: Value beyond an open end.
        timeout: Seconds, instead of the Exchange's.
    """
    flight, inputs, structures = _prepare(binding, route, trees, like, out, fill, timeout)
    seen = autograd.wanted(flight.call)
    outputs = autograd.differentiable(flight, inputs) if seen else flight.now(inputs)
    if structures.count(LEAF) == len(structures):  # one tensor each: the most frequent by far
        return tuple(outputs)
    return _build(structures, outputs)


def start_move(
    binding: Binding,
    route: Route,
    trees: Trees,
    build: Callable[[Trees], T],
    like: Trees | None = None,
    out: Trees | None = None,
    fill: float = 0,
    timeout: float | None = None,
) -> Pending[T]:
    """Start :func:`move`; ``wait()`` on what is returned finishes it and builds the result."""
    flight, inputs, structures = _prepare(binding, route, trees, like, out, fill, timeout)
    land: Callable[[], Sequence[Tensor]]
    if autograd.wanted(flight.call):
        land = autograd.start_differentiable(flight, inputs)
    else:
        land = flight.start(inputs).wait
    return Pending(
        f"{flight.call.plan.op} started at {caller()}",
        flight,
        inputs,
        lambda: build(_build(structures, land())),
        binding.engine.state.dropped,
        binding.engine.state.landing,
    )


def raise_left_over(binding: Binding) -> None:
    """Raise what earlier exchanges of the group left behind.

    Raises:
        PendingDropped: A Pending was thrown away; its messages are finished first.
        ExchangeError: An exchange failed: the connections of the group are in no known state.
    """
    state = binding.engine.state
    if state.broken is not None:
        raise ExchangeError(
            f"this group cannot be used any more {binding.here}, because {state.broken}. Start the"
            " processes again from the last checkpoint, or make a new process group"
        )
    if state.dropped:
        dropped, state.dropped[:] = list(state.dropped), []
        for one in dropped:
            if one.flight is not None:
                one.flight.wait()
        labels = [one.label for one in dropped if one.label]
        if labels:
            raise PendingDropped(
                f"{labels[0]}: the Pending was thrown away {binding.here}; keep it and call"
                " wait() on every rank, or use the operation without start_"
            )


def _prepare(
    binding: Binding,
    route: Route,
    trees: Trees,
    like: Trees | None,
    out: Trees | None,
    fill: float,
    timeout: float | None,
) -> tuple[Flight, list[Tensor], list[Structure | None]]:
    engine, state = binding.engine, binding.engine.state
    if state.broken is not None or state.dropped:
        raise_left_over(binding)
    if state.thread != get_ident():
        state.claim(binding.here)
    if binding.step is not None:
        state.follow(binding.step())
    inputs, sent, key = _flatten(binding, route.plan.op, trees)
    outputs, structures = inputs, sent
    if like is not None:
        outputs, structures = _flatten_like(binding, route.plan.op, like)
        key = (key, _key(outputs, structures))
    call = route.calls.get(key)
    deadline = binding.deadline if timeout is None else deadline_of(timeout)
    if call is None:
        binding.prepare(deadline)
        call = _make_call(binding, route, sent, inputs, structures, outputs)
        if len(route.calls) >= _MOST_CALLS:
            route.calls.clear()
        route.calls[key] = call
    outs = None if out is None else _flatten_out(binding, call, out, structures, inputs)
    if type(fill) is not int or fill != 0:
        check_fill(binding, call, fill)
    state.sequence += 1
    flight = Flight(engine, call, state.sequence, deadline, outs, fill)
    return flight, inputs, structures


def _flatten(
    binding: Binding, op: str, trees: Trees
) -> tuple[list[Tensor], list[Structure | None], Key]:
    """Return the tensors of all trees, their structures, and all that a call depends on."""
    inputs: list[Tensor] = []
    structures: list[Structure | None] = []
    key: list[object] = [torch.is_grad_enabled()]
    device, strided = binding.engine.device, torch.strided
    leaves: list[Tensor]
    for tree in trees:
        if type(tree) in PLAIN:
            leaves, structure = [tree], LEAF  # type: ignore[list-item]
        elif tree is None:
            structures.append(None)
            key.append(None)
            continue
        else:
            leaves, structure = flatten(tree, f"{op} {binding.here}")
            key.append(structure.count)
        structures.append(structure)
        for x in leaves:
            if (
                type(x) not in PLAIN
                or x.layout is not strided
                or x.device != device
                or is_wrapped(x)
            ):
                x = plain(binding, op, x)  # noqa: PLW2901 - the same tensor, as it travels
            inputs.append(x)
            key.append(x.shape)
            key.append(x.dtype)
    return inputs, structures, tuple(key)


def _key(tensors: list[Tensor], structures: list[Structure | None]) -> Key:
    key: list[object] = [structure and structure.count for structure in structures]
    for x in tensors:
        key += (x.shape, x.dtype)
    return tuple(key)


def _flatten_like(
    binding: Binding, op: str, like: Trees
) -> tuple[list[Tensor], list[Structure | None]]:
    leaves: list[Tensor] = []
    structures: list[Structure | None] = []
    for tree in like:
        if tree is None:
            structures.append(None)
            continue
        more, structure = flatten(tree, f"{op}: like= {binding.here}")
        leaves += more
        structures.append(structure)
    return leaves, structures


def _make_call(
    binding: Binding,
    route: Route,
    sent: Sequence[Structure | None],
    inputs: list[Tensor],
    arriving: Sequence[Structure | None],
    outputs: list[Tensor],
) -> Call:
    sends, recvs = _specs(sent, inputs), _specs(arriving, outputs)
    check_lanes(binding, route.plan, sends, recvs)
    differentiable = any(leaf.differentiable for lane in (*sends, *recvs) for leaf in lane)
    return Call(
        route.plan,
        sends,
        recvs,
        name=binding.name,
        topology=binding.digest,
        grad=differentiable and torch.is_grad_enabled(),
        signed=binding.signed,
        owner=binding.owner,
    )


def _specs(structures: Sequence[Structure | None], tensors: list[Tensor]) -> Specs:
    specs, first = [], 0
    for structure in structures:
        count = structure.count if structure is not None else 0
        leaves = tensors[first : first + count]
        specs.append(tuple(Leaf(tuple(x.shape), x.dtype) for x in leaves))
        first += count
    return tuple(specs)


def _flatten_out(
    binding: Binding,
    call: Call,
    out: Trees,
    structures: Sequence[Structure | None],
    inputs: list[Tensor],
) -> list[Tensor]:
    op = call.plan.op
    outs: list[Tensor] = []
    for tree, expected in zip(out, structures, strict=True):
        if expected is LEAF and type(tree) in PLAIN:
            outs.append(tree)  # type: ignore[arg-type]
        elif tree is not None or expected is not None:
            leaves, structure = flatten(tree, f"{op}: out= {binding.here}")
            if structure != expected and not (expected is None and not leaves):
                raise ArgumentError(
                    f"{op}: out= must be built like what arrives {binding.here}: expected"
                    f" {_built(expected)}, got {_built(structure)}"
                )
            outs += leaves
    check_out(binding, call, outs, inputs)
    return outs


def _built(structure: Structure | None) -> str:
    if structure is None:
        return "None: nothing travels this way"
    count = f"{structure.count} tensor{'' if structure.count == 1 else 's'}"
    return count if structure.spec is None else f"{count} in a {structure.spec}"


def _build(structures: Sequence[Structure | None], outputs: Sequence[Tensor]) -> Trees:
    trees: list[object] = []
    first = 0
    for structure in structures:
        if structure is LEAF:
            trees.append(outputs[first])
            first += 1
        elif structure is None:
            trees.append(None)
        else:
            trees.append(unflatten(structure, outputs[first : first + structure.count]))
            first += structure.count
    return tuple(trees)
