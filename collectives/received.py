"""What a two-way exchange returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from torch.utils import _pytree as pytree

__all__ = ["Received"]

L = TypeVar("L")
R = TypeVar("R")


class Received(tuple[L, R], Generic[L, R]):
    """A pair with names, so that nobody guesses the order.

    Unpacks as ``from_left, from_right = exchange.exchange(...)``. (A generic ``NamedTuple`` needs
    Python 3.11.)

    Args:
        from_left: What the left neighbour sent to its right; ``None`` if nothing travels that way.
        from_right: What the right neighbour sent to its left.
    """

    __slots__ = ()
    _fields = ("from_left", "from_right")

    def __new__(cls, from_left: L, from_right: R) -> Received[L, R]:
        """Make the pair."""
        return tuple.__new__(cls, (from_left, from_right))

    def __getnewargs__(self) -> tuple[L, R]:
        return (self.from_left, self.from_right)

    @property
    def from_left(self) -> L:
        """What the left neighbour sent to its right."""
        return self[0]

    @property
    def from_right(self) -> R:
        """What the right neighbour sent to its left."""
        return self[1]

    def __repr__(self) -> str:
        return f"Received(from_left={self.from_left!r}, from_right={self.from_right!r})"


def _unflatten(values: Iterable[object], context: object) -> Received[object, object]:
    del context
    return Received(*values)


pytree.register_pytree_node(
    Received,
    lambda pair: (list(pair), None),
    _unflatten,
    serialized_type_name="collectives.Received",
)
