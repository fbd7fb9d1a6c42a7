"""Trees of tensors: flatten and rebuild.

``torch.utils._pytree`` does the work (tuple, list, dict, NamedTuple and whatever is registered
there). Two things are added: dataclasses, without registering other people's classes globally,
and ``None`` as an empty place.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar, cast

from torch import Tensor
from torch.utils import _pytree as pytree

from .errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LEAF", "Structure", "flatten", "unflatten"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Structure:
    """A tree without its tensors.

    Args:
        spec: Of ``torch.utils._pytree``; ``None`` for a tree that is one tensor.
        places: What stands at each leaf of ``spec``: a tensor ("tensor"), nothing ("none"), or a
            dataclass with the structure of its fields.
    """

    spec: pytree.TreeSpec | None
    places: tuple[str | tuple[type, tuple[str, ...], Structure], ...]
    count: int = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        inner = [
            1 if p == "tensor" else 0 if isinstance(p, str) else p[2].count for p in self.places
        ]
        object.__setattr__(self, "count", sum(inner))


LEAF = Structure(None, ("tensor",))


def flatten(tree: object, operation: str) -> tuple[list[Tensor], Structure]:
    """Return the tensors of a tree, left to right, and its structure.

    Raises:
        ArgumentError: A leaf is neither a tensor nor ``None``; the text names its path.
    """
    if isinstance(tree, Tensor):
        return [tree], LEAF
    leaves, spec = pytree.tree_flatten(tree)
    tensors: list[Tensor] = []
    places: list[str | tuple[type, tuple[str, ...], Structure]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            places.append("tensor")
        elif leaf is None:
            places.append("none")
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = tuple(f.name for f in dataclasses.fields(leaf))
            inner, structure = flatten([getattr(leaf, name) for name in names], operation)
            tensors += inner
            places.append((type(leaf), names, structure))
        else:
            raise ArgumentError(
                f"{operation}: every leaf of the tree must be a tensor, got"
                f" {type(leaf).__name__} at {_path(tree, leaf)}; make it a tensor"
                " (torch.as_tensor) or keep it out of the tree"
            )
    return tensors, Structure(spec, tuple(places))


def unflatten(structure: Structure, tensors: Sequence[Tensor]) -> object:
    """Return the tree of a structure with these tensors as its leaves."""
    if structure.spec is None:
        return tensors[0]
    return _rebuild(structure, iter(tensors))


def _rebuild(structure: Structure, tensors: Iterator[Tensor]) -> object:
    leaves: list[object] = []
    for place in structure.places:
        if place == "tensor":
            leaves.append(next(tensors))
        elif isinstance(place, str):
            leaves.append(None)
        else:
            cls, names, inner = place
            values = cast("list[object]", _rebuild(inner, tensors))
            leaves.append(cls(**dict(zip(names, values, strict=True))))
    assert structure.spec is not None
    return cast("object", pytree.tree_unflatten(leaves, structure.spec))


def _path(tree: object, leaf: object) -> str:
    for path, value in pytree.tree_flatten_with_path(tree)[0]:
        if value is leaf:
            return f"tree{pytree.keystr(path)}"
    return "tree"
