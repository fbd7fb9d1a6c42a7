"""Tensors that a function uses and was not given: autograd would lose their gradients.

The terms of a fold are computed without a graph, and again in backward with one of their own. What
the function was given takes part in autograd; what it has by closure does not, and nobody would
notice. So the graph of a term is walked: it must end at what was given, or at the parameters that
were named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.autograd.graph import Node

__all__ = ["Captured", "clock", "find_captured"]

Edge = tuple["Node", int]

# Without it a node is made to ask: twenty times as long.
_peek: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)


class Captured(NamedTuple):
    """A tensor that was found in the graph of a term.

    Args:
        shape: Its shape; ``None`` where torch does not say.
        dtype: Likewise.
        leaf: Whether it is a leaf, such as a parameter.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    leaf: bool

    def __str__(self) -> str:
        if self.shape is None:
            return "a tensor"
        kind = "tensor" if self.leaf else "tensor that was computed outside"
        return f"a {kind} of shape {self.shape}, {self.dtype},"


def clock() -> int:
    """Return the number of the next node that this thread adds to a graph."""
    if _peek is not None:
        return _peek()
    with torch.enable_grad():
        return _number(torch.empty(0, requires_grad=True).view(0).grad_fn)


def find_captured(
    outputs: Sequence[Tensor], given: Iterable[Tensor], since: int
) -> Captured | None:
    """Return a tensor that requires grad, that the outputs depend on, and that was not given.

    Args:
        outputs: Of the function.
        given: What they may depend on.
        since: :func:`clock` before the function was called: older nodes are not its own.
    """
    named = [x for x in given if x.requires_grad]
    known, leaves = set(_edges(named)), {id(x) for x in named if x.grad_fn is None}
    for y in outputs:
        if y.requires_grad and y.grad_fn is None and id(y) not in leaves:
            return Captured(tuple(y.shape), y.dtype, leaf=True)
    waiting = _edges(outputs)
    seen: set[Node] = set()
    while waiting:
        node, place = waiting.pop()
        if (node, place) in known:
            continue
        before = node.next_functions
        variable = None if before else getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            if id(variable) in leaves:
                continue
            return Captured(tuple(variable.shape), variable.dtype, leaf=True)
        if _number(node) < since:
            return _older(node, place)
        if node not in seen:
            seen.add(node)
            waiting += [(onward, at) for onward, at in before if onward is not None]
    return None


def _edges(tensors: Iterable[Tensor]) -> list[Edge]:
    """Return where tensors come from in the graph; leaves come from nowhere."""
    return [(x.grad_fn, x.output_nr) for x in tensors if x.grad_fn is not None]


def _older(node: Node, place: int) -> Captured:
    metadata = getattr(node, "_input_metadata", None)
    if metadata is None:  # torch < 2.1 does not say
        return Captured(None, None, leaf=False)
    return Captured(tuple(metadata[place].shape), metadata[place].dtype, leaf=False)


def _number(node: Node | None) -> int:
    assert node is not None
    return node._sequence_nr()
