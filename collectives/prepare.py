"""What comes before a call is flown: the group and the arguments are fit for it, it has a number.

Everything that can be refused is refused here, before anything is posted.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from torch import Tensor

from .checks import PLAIN, check_fill, check_out, is_wrapped
from .deadline import deadline_of
from .discover import discover, refuse_sizes
from .errors import ArgumentError, ExchangeError, PendingDropped
from .flight import Flight
from .lookup import Structures, Trees, find_call, plain_key
from .transforms import transformed
from .trees import LEAF, Structure, flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .binding import Binding, Route
    from .call import Call

__all__ = ["begin", "prepare", "raise_left_over"]


def raise_left_over(binding: Binding) -> None:
    """Raise what earlier exchanges of the group left behind.

    Raises:
        PendingDropped: A Pending was thrown away; its messages are finished first.
        ExchangeError: An exchange failed: the connections of the group are in no known state; or a
            loop that was left early could not be finished well.
    """
    state = binding.engine.state
    if state.broken is not None:
        raise ExchangeError(
            f"this group cannot be used any more {binding.here}, because {state.broken}. Where all"
            " ranks live, call exchange.renew() on all of them; else start the processes again from"
            " the last checkpoint"
        )
    if state.dropped:
        dropped, state.dropped[:] = list(state.dropped), []
        for one in dropped:
            if one.flight is not None:
                one.flight.wait()
        for one in dropped:
            if one.error is not None:
                raise one.error
        labels = [one.label for one in dropped if one.label]
        if labels:
            raise PendingDropped(
                f"{labels[0]}: the Pending was thrown away {binding.here}; keep it and call"
                " wait() on every rank, or use the operation without start_"
            )


def begin(binding: Binding) -> None:
    """Raise unless this thread may exchange over the group now; follow the runtime's step."""
    state = binding.engine.state
    if state.broken is not None or state.dropped:
        raise_left_over(binding)
    if state.thread != get_ident():
        state.claim(binding.here)
    if binding.step is not None:
        state.follow(binding.step())


def prepare(
    binding: Binding,
    route: Route,
    trees: Trees,
    like: Trees | None,
    out: Trees | None,
    fill: float,
    timeout: float | None,
) -> tuple[Flight, Sequence[Tensor], Structures | None]:
    """Return what is to be flown, its tensors, and how the trees that arrive are built.

    The latter is ``None`` where each is one tensor: the most frequent by far.
    """
    engine, state = binding.engine, binding.engine.state
    begin(binding)
    deadline = binding.deadline if timeout is None else deadline_of(timeout)
    inputs: Sequence[Tensor]
    structures: Structures | None
    wrapped = False
    call = None if like is not None else route.calls.get(plain_key(trees, engine.device))
    if call is not None:
        inputs, structures = trees, None  # type: ignore[assignment]  # tensors: they have the key
    else:
        call, inputs, structures = find_call(binding, route, trees, like, deadline)
        wrapped = transformed() and any(map(is_wrapped, inputs))
    outs: Sequence[Tensor] | None = None
    gaps = False
    if out is not None:
        outs = _flatten_out(binding, call, out, structures)
        gaps = check_out(binding, call, outs, inputs)
    if type(fill) is not int or fill != 0:
        check_fill(binding, call, fill)
    state.sequence += 1
    flight = Flight(engine, call, state.sequence, deadline, outs, fill)
    if gaps:
        flight.gaps = True
    if route.discover:
        flight = discover(flight, route)
    if wrapped:
        flight.wrapped = True
    return flight, inputs, structures


def _flatten_out(
    binding: Binding,
    call: Call,
    out: Trees,
    structures: Structures | None,
) -> Sequence[Tensor]:
    if call.discovers:
        refuse_sizes(binding, call.plan, "out")
    if structures is None:
        for tree in out:
            if type(tree) not in PLAIN:
                break
        else:
            return out  # type: ignore[return-value]  # plain tensors
    op = call.plan.op
    outs: list[Tensor] = []
    for tree, expected in zip(out, structures or [LEAF] * len(out), strict=True):
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
    return outs


def _built(structure: Structure | None) -> str:
    if structure is None:
        return "None: nothing travels this way"
    count = f"{structure.count} tensor{'' if structure.count == 1 else 's'}"
    return count if structure.spec is None else f"{count} in a {structure.spec}"
