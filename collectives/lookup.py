"""From trees to the call that moves them: made once, and found again by shapes and grad mode."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .call import MOST_CALLS, Call, Specs
from .checks import PLAIN, check_lanes, is_wrapped, plain
from .discover import Draft, check_draft, refuse_sizes
from .messages import Leaf
from .trees import LEAF, Structure, flatten, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .binding import Binding, Route
    from .deadline import Deadline

__all__ = ["Structures", "Trees", "find_call", "plain_key"]

Trees = tuple[object, ...]
Structures = list[Structure | None]
Key = tuple[object, ...]


def plain_key(trees: Trees, device: torch.device) -> Key | None:
    """Return the key of :func:`_flatten` if every tree is one plain tensor, else ``None``.

    What has no memory of its own (sparse, wrapped by torch.func, a meta tensor) has no address:
    one question instead of three. Empty tensors have none either.
    """
    key: Key = (torch.is_grad_enabled(),)
    x: Tensor
    try:
        for x in trees:  # type: ignore[assignment]  # its type is asked first
            if type(x) not in PLAIN or x.device != device or not x.data_ptr():
                return None
            key += (x.shape, x.dtype)
    except RuntimeError:
        return None
    return key


def find_call(
    binding: Binding, route: Route, trees: Trees, like: Trees | None, deadline: Deadline
) -> tuple[Call, Sequence[Tensor], Structures | None]:
    """Return the call for any trees, made if there is none yet, their tensors, what arrives."""
    inputs, sent, key = _flatten(binding, route.plan.op, trees)
    outputs, structures = inputs, sent
    if like is not None:
        if route.discover and not route.builds:
            refuse_sizes(binding, route.plan, "like")
        outputs, structures = _flatten_like(binding, route.plan.op, like)
        key = (key, _key(outputs, structures))
    call = route.calls.get(key)
    if call is None:
        binding.prepare(deadline)
        call = _make_call(binding, route, sent, inputs, structures, outputs)
        if len(route.calls) >= MOST_CALLS:
            route.calls.clear()
        route.calls[key] = call
    for structure in structures:
        if structure is not LEAF:
            return call, inputs, structures
    return call, inputs, None


def _flatten(
    binding: Binding, op: str, trees: Trees
) -> tuple[list[Tensor], list[Structure | None], Key]:
    """Return the tensors of all trees, their structures, and all that a call depends on."""
    inputs: list[Tensor] = []
    structures: list[Structure | None] = []
    key: list[object] = [torch.is_grad_enabled()]
    device = binding.engine.device
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
            key.append(structure)
        structures.append(structure)
        if not _are_plain(leaves, device):
            leaves = [plain(binding, op, x) for x in leaves]  # the same tensors, as they travel
        inputs += leaves
        key += map(_shape_of, leaves)
        key += map(_dtype_of, leaves)
    return inputs, structures, tuple(key)


# Attribute by attribute in C: a loop in Python over 100 leaves would show.
_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")
_device_of, _layout_of = attrgetter("device"), attrgetter("layout")


def _are_plain(leaves: list[Tensor], device: torch.device) -> bool:
    """Whether all tensors can travel as they are."""
    return (
        PLAIN.issuperset(map(type, leaves))
        and {torch.strided}.issuperset(map(_layout_of, leaves))
        and {device}.issuperset(map(_device_of, leaves))
        and not any(map(is_wrapped, leaves))
    )


def _key(tensors: list[Tensor], structures: list[Structure | None]) -> Key:
    key: list[object] = list(structures)
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
    if route.discover:
        check_draft(binding, route.plan, sends)
    return (Draft if route.discover else Call)(
        route.plan,
        sends,
        recvs,
        name=binding.name,
        topology=binding.digest,
        grad=torch.is_grad_enabled(),
        verify=binding.verify,
        owner=binding.owner,
        trees=tuple(zip(map(in_words, sent), map(in_words, arriving), strict=True)),
    )


def _specs(structures: Sequence[Structure | None], tensors: list[Tensor]) -> Specs:
    specs, first = [], 0
    for structure in structures:
        count = structure.count if structure is not None else 0
        leaves = tensors[first : first + count]
        specs.append(tuple(Leaf(tuple(x.shape), x.dtype) for x in leaves))
        first += count
    return tuple(specs)
