"""shift, exchange and permute while code is traced; imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from .compiled.eager import beyond_graphs, in_eager_mode
from .compiled.traced import move
from .received import Received
from .routes import Axis, Operation, Pairs, Shapes, as_pairs, find_route

if TYPE_CHECKING:
    from collections.abc import Callable

    from .binding import Binding
    from .moves import Moves
    from .plan import Plan

__all__ = ["exchange", "permute", "shift"]

T = TypeVar("T")
L = TypeVar("L")
R = TypeVar("R")


def shift(
    self: Moves,
    tree: T,
    offset: int,
    axis: Axis,
    fill: float,
    like: T | None,
    out: T | None,
    shapes: Shapes,
    timeout: float | None,
) -> T:
    """Do :meth:`Exchange.shift` in a graph."""
    if reason := beyond_graphs("shift", out, shapes):
        more = {"like": like, "out": out, "shapes": shapes, "timeout": timeout}
        shift = cast("Callable[..., T]", self.shift)
        return in_eager_mode(reason, shift, tree, offset, axis=axis, fill=fill, **more)
    expected = None if like is None else (like,)
    arguments = ("shift", axis, offset)
    (arrived,) = move(self, _plan, arguments, (tree,), expected, fill, timeout)
    return cast("T", arrived)


def exchange(
    self: Moves,
    to_left: L,
    to_right: R,
    axis: Axis,
    like: Received[R, L] | None,
    out: Received[R, L] | None,
    shapes: Shapes,
    timeout: float | None,
) -> Received[R, L]:
    """Do :meth:`Exchange.exchange` in a graph."""
    if reason := beyond_graphs("exchange", out, shapes):
        more = {"like": like, "out": out, "shapes": shapes, "timeout": timeout}
        sides = {"to_left": to_left, "to_right": to_right}
        return in_eager_mode(reason, self.exchange, axis=axis, **sides, **more)
    # In the order of the lanes: leftward data come from the right.
    expected = None if like is None else (like[1], like[0])
    trees = (to_left, to_right)
    from_right, from_left = move(self, _plan, ("exchange", axis), trees, expected, 0, timeout)
    return cast("Received[R, L]", Received(from_left, from_right))


def permute(
    self: Moves,
    tree: T,
    pairs: Pairs,
    fill: float,
    like: T | None,
    out: T | None,
    shapes: Shapes,
    timeout: float | None,
) -> T:
    """Do :meth:`Exchange.permute` in a graph."""
    if reason := beyond_graphs("permute", out, shapes):
        more = {"like": like, "out": out, "shapes": shapes, "timeout": timeout}
        permute = cast("Callable[..., T]", self.permute)
        return in_eager_mode(reason, permute, tree, pairs, fill=fill, **more)
    expected = None if like is None else (like,)
    arguments = ("permute", None, 0, pairs)
    (arrived,) = move(self, _plan, arguments, (tree,), expected, fill, timeout)
    return cast("T", arrived)


def _plan(
    binding: Binding, operation: Operation, axis: Axis, offset: int = 0, pairs: Pairs = ()
) -> Plan:
    """Return the plan of an operation; runs when it is traced."""
    return find_route(binding, operation, "same", axis, offset, as_pairs(pairs)).plan
