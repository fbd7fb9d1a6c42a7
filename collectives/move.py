"""From trees to a call and back: what ``shift``, ``exchange`` and ``permute`` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import Tensor
from torch.autograd import forward_ad

from . import autograd
from .chain import caller
from .lookup import Trees
from .pending import Pending
from .prepare import prepare
from .trees import LEAF, Structure, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .binding import Binding, Route

__all__ = ["move", "start_move"]

T = TypeVar("T")


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
    flight, inputs, structures = prepare(binding, route, trees, like, out, fill, timeout)
    call = flight.call
    outputs: Sequence[Tensor]
    if call.grad or (forward_ad._current_level >= 0 and call.differentiable):
        outputs = autograd.differentiable(flight, inputs)
    elif flight.wrapped:
        outputs = autograd.under_transforms(flight, inputs)
    else:
        outputs = flight.now(inputs)
    return tuple(outputs) if structures is None else _build(structures, outputs)


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
    flight, inputs, structures = prepare(binding, route, trees, like, out, fill, timeout)
    land: Callable[[], Sequence[Tensor]]
    if autograd.wanted(flight.call):
        land = autograd.start_differentiable(flight, inputs)
    elif flight.wrapped:
        arrived = autograd.under_transforms(flight, inputs)
        land = lambda: arrived  # noqa: E731
    else:
        land = flight.start(inputs).wait
    return Pending(
        f"{flight.call.plan.op} started at {caller()}",
        flight,
        inputs,
        lambda: build(tuple(land()) if structures is None else _build(structures, land())),
        binding.engine.state.dropped,
        binding.engine.state.landing,
    )


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
