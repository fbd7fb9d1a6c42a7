"""Trees of tensors: flatten and rebuild.

``torch.utils._pytree`` does the work (tuple, list, dict, NamedTuple and whatever is registered
there). Two things are added: dataclasses, without registering other people's classes globally,
and ``None`` as an empty place.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, TypeVar, cast

from torch import Tensor
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from .errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LEAF", "Structure", "flatten", "unflatten"]

T = TypeVar("T")

Row = type[list[object]] | type[tuple[object, ...]]

_ROWS = (list, tuple)
_PLAIN = frozenset({Tensor, Parameter})


@dataclasses.dataclass(frozen=True)
class Structure:
    """A tree without its tensors.

    Args:
        spec: Of ``torch.utils._pytree``; ``None`` for a tree that is one tensor.
        places: What stands at each leaf of ``spec``: a tensor ("tensor"), nothing ("none"), or a
            dataclass with the structure of its fields.
        row: For a list or tuple of tensors and nothing else, its type.
    """

    spec: pytree.TreeSpec | None
    places: tuple[str | tuple[type, tuple[str, ...], Structure], ...]
    row: Row | None = dataclasses.field(default=None, compare=False)
    count: int = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        inner = [
            1 if p == "tensor" else 0 if isinstance(p, str) else p[2].count for p in self.places
        ]
        object.__setattr__(self, "count", sum(inner))


LEAF = Structure(None, ("tensor",))


@functools.lru_cache(maxsize=256)
def _row(kind: Row, length: int) -> Structure:
    _, spec = pytree.tree_flatten(kind(range(length)))
    return Structure(spec, ("tensor",) * length, kind)


def flatten(tree: object, operation: str) -> tuple[list[Tensor], Structure]:
    """Return the tensors of a tree, left to right, and its structure.

    Raises:
        ArgumentError: A leaf is neither a tensor nor ``None``; the text names its path.
    """
    if isinstance(tree, Tensor):
        return [tree], LEAF
    # pytree visits leaf by leaf: for 100 tensors that takes longer than to pack them.
    if isinstance(tree, _ROWS) and type(tree) in _ROWS and _PLAIN.issuperset(map(type, tree)):
        return list(tree), _row(type(tree), len(tree))
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
    if structure.row is not None:
        return structure.row(tensors)
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
