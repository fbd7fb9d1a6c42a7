"""The edges of an operation while code is traced; imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .compiled.at_trace import constant
from .compiled.live import named
from .compiled.traced import move
from .neighbours import ByEdge, find_edges

if TYPE_CHECKING:
    from .binding import Binding
    from .moves import Moves
    from .plan import Plan

__all__ = ["EdgesInGraph"]

Trees = tuple[object, ...]


class EdgesInGraph(ByEdge):
    """What is known of them when the code is traced."""

    def __init__(self, exchange: Moves, operation: str, step: int | None) -> None:
        self.exchange, self.operation, self.step = exchange, operation, step
        facts = _edges(exchange._handle, operation, step)
        self.op, self.here, self.gives, self.meets = facts[:4]
        self.leaving, self.arriving, self.own, self.weights = facts[4:]

    def move(self, trees: Trees, like: Trees | None, timeout: float | None) -> Trees:
        """Send one tree down each lane; return what arrives."""
        arguments = (self.operation, self.step)
        return move(self.exchange, _plan, arguments, trees, like, timeout=timeout)


@constant
def _edges(
    handle: str, operation: str, step: int | None
) -> tuple[
    str, str, tuple[bool, ...], bool, tuple[int, ...], tuple[int, ...], float, tuple[float, ...]
]:
    binding = named(handle)._bound()
    route = find_edges(binding, operation, step)
    return (
        route.op,
        binding.here,
        route.gives,
        route.meets,
        route.leaving,
        route.arriving,
        route.own,
        route.weights,
    )


def _plan(binding: Binding, operation: str, step: int | None) -> Plan:
    return find_edges(binding, operation, step).plan
