"""What stands in for the operations while code is traced: the operator, with its plan as text.

Dynamo reads this module line by line, so it is plain: no caches, no exceptions. What it writes to
the chain it does when the graph has run, so a token goes from one graph to the next, and to eager
code, like any other tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from ..errors import ArgumentError
from ..trees import Structure, flatten, unflatten
from .at_trace import base_of, bind, refuse, script_of
from .strand import strand_in

if TYPE_CHECKING:
    from ..binding import Binding
    from ..chain import Chain
    from ..plan import Plan
    from .live import Named

__all__ = ["binding_in_graph", "join", "move"]

Trees = Sequence[object]
Kinds = tuple[tuple[torch.dtype, int], ...]


def move(
    exchange: Named,
    find: Callable[..., Plan],
    arguments: tuple[object, ...],
    trees: Trees,
    like: Trees | None = None,
    fill: float = 0,
    timeout: float | None = None,
    *,
    constant: bool = False,
) -> tuple[object, ...]:
    """Send one tree down each lane of a plan; return what arrives, lane by lane.

    Args:
        exchange: Whose ranks.
        find: Returns the plan, by the binding and the arguments; runs when it is traced.
        arguments: Known when the code is compiled.
        trees: As of :func:`collectives.move.move`, and what follows.
        like: For each lane, a tree of the shapes and dtypes that arrive.
        fill: Value beyond an open end.
        timeout: Seconds, instead of the Exchange's.
        constant: Whether this rank's own tree needs no gradient, whatever has joined it since.
    """
    if forward_ad._current_level >= 0:
        refuse(
            "an exchange in compiled code has no forward mode: leave make_dual to eager mode, or"
            " take gradients by backward()"
        )
    base = base_of(exchange._handle, find, arguments)
    sent, structures, kinds = _taken_apart(trees)
    expected, built, came = (sent, structures, kinds) if like is None else _taken_apart(like)
    grad = torch.is_grad_enabled()
    linked = grad and any(x.is_floating_point() or x.is_complex() for x in (*sent, *expected))
    wanted = linked and not constant and any(x.requires_grad for x in sent)
    counts = tuple([len(lane) for lane in kinds])
    strand = strand_in(_chain_of(exchange))
    chained = linked and strand.chained
    outlines = _outlines(trees), _outlines(trees if like is None else like)
    script = script_of(base, counts, came, outlines, grad, wanted, chained, fill, timeout)
    sizes = [size for x in expected for size in x.shape]

    token = strand.token if linked else None
    token, ticket, *arrived = torch.ops.collectives.exchange(
        sent, token, strand.ticket, sizes, script
    )
    strand.ticket = ticket
    if linked and strand.token is not None:
        strand.token, strand.joined = token, False
    return _put_together(built, arrived)


def join(exchange: Named, loss: Tensor) -> Tensor:
    """Tie the chain to ``loss`` and cut it."""
    if not (loss.is_floating_point() or loss.is_complex()):
        raise ArgumentError(f"join: expected a floating-point tensor, got one of {loss.dtype}")
    strand = strand_in(binding_in_graph(exchange).engine.state.chain)
    token = strand.token
    if token is None or not torch.is_grad_enabled():
        return loss
    strand.token, strand.joined = strand.root, True
    return cast("Tensor", torch.ops.collectives.join(loss, token))


def binding_in_graph(exchange: Named) -> Binding:
    """Return the binding, which is made when the code is traced if there is none yet."""
    bind(exchange._handle)
    return exchange._binding  # type: ignore[return-value]  # it is bound


def _chain_of(exchange: Named) -> Chain:
    return exchange._binding.engine.state.chain  # type: ignore[union-attr]  # it is bound


def _taken_apart(
    trees: Trees,
) -> tuple[list[Tensor], list[Structure | None], tuple[Kinds, ...]]:
    """Return the tensors of all trees, how each is built, and of what kind they are by tree."""
    tensors: list[Tensor] = []
    structures: list[Structure | None] = []
    kinds: list[Kinds] = []
    for tree in trees:
        leaves: list[Tensor] = []
        structure = None
        if tree is not None:
            _check_leaves(tree)
            leaves, structure = flatten(tree, "exchange in compiled code")
        tensors += leaves
        structures.append(structure)
        kinds.append(tuple([(x.dtype, x.dim()) for x in leaves]))
    return tensors, structures, tuple(kinds)


def _outlines(trees: Trees) -> tuple[object, ...]:
    """Return trees with a number for each tensor: what can be a constant."""
    return tuple([pytree.tree_map(_outline, tree) for tree in trees])


def _outline(leaf: object) -> int | None:
    return None if leaf is None else 0


def _check_leaves(tree: object) -> None:
    """Refuse what Dynamo cannot take apart and build again."""
    for leaf in pytree.tree_leaves(tree):
        if leaf is not None and not isinstance(leaf, Tensor):
            refuse(
                f"an exchange in compiled code: expected tensors in tuples, lists, dicts or"
                f" NamedTuples, got {type(leaf).__name__}; put its tensors into one of these"
            )


def _put_together(
    structures: Sequence[Structure | None], arrived: Sequence[Tensor]
) -> tuple[object, ...]:
    trees: list[Any] = []
    first = 0
    for structure in structures:
        if structure is None:
            trees.append(None)
        else:
            trees.append(unflatten(structure, arrived[first : first + structure.count]))
            first += structure.count
    return tuple(trees)
