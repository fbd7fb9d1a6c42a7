"""Trees of tensors: flatten and rebuild.

``torch.utils._pytree`` does the work (tuple, list, dict, NamedTuple and whatever is registered
there). Three things are added: dataclasses, without registering other people's classes globally;
``None`` as an empty place; and mappings in the order of their keys, so that ranks which filled
theirs in another order still exchange what stands under one name.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, TypeVar, cast

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.utils import _pytree as pytree

from .errors import ArgumentError
from .facts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

__all__ = ["LEAF", "Branch", "Structure", "flatten", "in_words", "unflatten"]

T = TypeVar("T")
Row = type[list[object]] | type[tuple[object, ...]]

_MAPPINGS = frozenset({dict, OrderedDict, defaultdict})
_ROWS = (list, tuple)
_PLAIN = frozenset({Tensor, Parameter})
_LONGEST = 200  # letters of the words for a tree
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SPEC = re.compile(r"TreeSpec\((?:(\w+), None|namedtuple, <class '(?:.*?\.)?(\w+)'>), \[")
_LEAF_WORD = re.compile(r"(?<=[\[ ])\*(?=[\],])|^\*$")


@dataclasses.dataclass(frozen=True)
class Branch:
    """A dataclass or mapping without its tensors.

    Args:
        kind: Its class.
        names: Its fields or keys, in the order in which they travel.
        children: What stands under each name.
        shown: The names in the caller's order, which the result has too.
        factory: Of a ``defaultdict``.
    """

    kind: type
    names: tuple[Hashable, ...]
    children: tuple[Structure, ...]
    shown: tuple[Hashable, ...] = dataclasses.field(compare=False)
    factory: Callable[[], object] | None = dataclasses.field(compare=False)

    @property
    def count(self) -> int:
        """Number of tensors."""
        return sum(child.count for child in self.children)

    def build(self, values: Iterable[object]) -> object:
        """Return the dataclass or mapping with these values under its names."""
        named = dict(zip(self.names, values, strict=True))
        if self.kind is defaultdict:
            return defaultdict(self.factory, {name: named[name] for name in self.shown})
        make = cast("Callable[..., object]", self.kind)
        if self.kind in _MAPPINGS:
            return make((name, named[name]) for name in self.shown)
        return make(**cast("dict[str, object]", named))


@dataclasses.dataclass(frozen=True)
class Structure:
    """A tree without its tensors.

    Args:
        spec: Of ``torch.utils._pytree``; ``None`` for a tree that is one tensor.
        places: What stands at each leaf of ``spec``: a tensor ("tensor"), nothing ("none"), or a
            dataclass or mapping.
        row: For a list or tuple of tensors and nothing else, its type.
    """

    spec: pytree.TreeSpec | None
    places: tuple[str | Branch, ...]
    row: Row | None = dataclasses.field(default=None, compare=False)
    count: int = dataclasses.field(init=False, compare=False)

    def __hash__(self) -> int:
        """Cheap: part of the key of every call; few trees of one length are built differently."""
        return self.count

    def __post_init__(self) -> None:
        inner = [1 if p == "tensor" else 0 if isinstance(p, str) else p.count for p in self.places]
        object.__setattr__(self, "count", sum(inner))


LEAF = Structure(None, ("tensor",))


def in_words(structure: Structure | None) -> str:
    """Return how a tree is built, alike in every process; "" for one tensor, or for nothing."""
    if structure is None or structure.spec is None:
        return ""
    words = _ADDRESS.sub("", _words(structure)).replace("__mp_main__", "__main__")
    return shortened(words, _LONGEST)


def _words(structure: Structure) -> str:
    if structure.spec is None:
        return "*"
    text = _SPEC.sub(r"\1\2([", " ".join(repr(structure.spec).split()))
    leaves = iter(structure.places)
    return _LEAF_WORD.sub(lambda _: _word(next(leaves, "tensor")), text)


def _word(place: str | Branch) -> str:
    if isinstance(place, str):
        return "*" if place == "tensor" else "None"
    children = map(_words, place.children)
    if place.kind in _MAPPINGS:
        pairs = ", ".join(f"{k!r}: {w}" for k, w in zip(place.names, children, strict=True))
        return f"{'' if place.kind is dict else place.kind.__name__}{{{pairs}}}"
    pairs = ", ".join(f"{k}={w}" for k, w in zip(place.names, children, strict=True))
    return f"{place.kind.__name__}({pairs})"


@functools.lru_cache(maxsize=256)
def _row(kind: Row, length: int) -> Structure:
    _, spec = pytree.tree_flatten(kind(range(length)))
    return Structure(spec, ("tensor",) * length, kind)


class _WrongLeafError(Exception):
    """A leaf that is no tensor; the path grows on the way out."""

    def __init__(self, leaf: object, path: str, why: str = "") -> None:
        super().__init__(path)
        self.leaf, self.path, self.why = leaf, path, why


def flatten(tree: object, operation: str) -> tuple[list[Tensor], Structure]:
    """Return the tensors of a tree, left to right (mappings: by key), and its structure.

    Raises:
        ArgumentError: A leaf is neither a tensor nor ``None``; the text names its path.
    """
    try:
        return _flatten(tree)
    except _WrongLeafError as wrong:
        raise ArgumentError(
            f"{operation}: every leaf of the tree must be a tensor, got"
            f" {type(wrong.leaf).__name__} at tree{wrong.path}{wrong.why}; make it a tensor"
            " (torch.as_tensor), or put only the tensors into the tree"
        ) from None
    except RecursionError:
        raise ArgumentError(
            f"{operation}: the tree contains itself, or is nested too deep; flatten it"
        ) from None


def _flatten(tree: object) -> tuple[list[Tensor], Structure]:
    if isinstance(tree, Tensor):
        return [tree], LEAF
    # pytree visits leaf by leaf: for 100 tensors that takes longer than to pack them.
    if (
        isinstance(tree, _ROWS)
        and type(tree) in _ROWS
        and _PLAIN.issuperset(map(type, tree))
        and not is_compiling()  # which knows no caches
    ):
        return list(tree), _row(type(tree), len(tree))
    leaves, spec = pytree.tree_flatten(tree, is_leaf=_is_mapping)
    tensors: list[Tensor] = []
    places: list[str | Branch] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            places.append("tensor")
        elif leaf is None:
            places.append("none")
        else:
            try:
                inner, branch = _flatten_branch(leaf)
            except _WrongLeafError as wrong:
                wrong.path = _path(tree, leaf) + wrong.path
                raise
            tensors += inner
            places.append(branch)
    return tensors, Structure(spec, tuple(places))


def _flatten_branch(leaf: object) -> tuple[list[Tensor], Branch]:
    values: Mapping[Hashable, object]
    if _is_mapping(leaf):
        values = cast("Mapping[Hashable, object]", leaf)
        names = tuple(sorted(values, key=_key_order))
    elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        fields = dataclasses.fields(leaf)
        if not all(field.init for field in fields):
            raise _WrongLeafError(
                leaf, "", " with a field(init=False), which cannot be built again"
            )
        values = {field.name: getattr(leaf, field.name) for field in fields}
        names = tuple(values)
    else:
        raise _WrongLeafError(leaf, "")
    tensors: list[Tensor] = []
    children: list[Structure] = []
    for name in names:
        try:
            inner, child = _flatten(values[name])
        except _WrongLeafError as wrong:
            wrong.path = (f"[{name!r}]" if _is_mapping(leaf) else f".{name}") + wrong.path
            raise
        tensors += inner
        children.append(child)
    factory = getattr(leaf, "default_factory", None)
    return tensors, Branch(type(leaf), names, tuple(children), tuple(values), factory)


def _is_mapping(tree: object) -> bool:
    return type(tree) in _MAPPINGS


def _key_order(key: Hashable) -> tuple[str, str]:
    """Sort keys of any kind; hashes would differ from process to process."""
    return type(key).__qualname__, repr(key)


def unflatten(structure: Structure, tensors: Sequence[Tensor]) -> object:
    """Return the tree of a structure with these tensors as its leaves."""
    if structure.row is not None:
        return structure.row(tensors)
    return _rebuild(structure, iter(tensors))


def _rebuild(structure: Structure, tensors: Iterator[Tensor]) -> object:
    if structure.spec is None:
        return next(tensors)
    leaves: list[object] = []
    for place in structure.places:
        if place == "tensor":
            leaves.append(next(tensors))
        elif isinstance(place, str):
            leaves.append(None)
        else:
            leaves.append(place.build(_rebuild(child, tensors) for child in place.children))
    return cast("object", pytree.tree_unflatten(leaves, structure.spec))


def _path(tree: object, leaf: object) -> str:
    for path, value in pytree.tree_flatten_with_path(tree, is_leaf=_is_mapping)[0]:
        if value is leaf:
            return pytree.keystr(path)
    return ""
