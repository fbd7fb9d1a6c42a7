"""From an operation with its arguments to the plan of this rank, made once per Exchange."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, SupportsIndex

from .binding import Route
from .errors import ArgumentError
from .plan import Plan, plan_exchange, plan_permute, plan_shift
from .topology import Cartesian, Topology

if TYPE_CHECKING:
    from .binding import Binding

__all__ = [
    "Axis",
    "Operation",
    "Pairs",
    "Shapes",
    "as_pairs",
    "check_shapes",
    "find_route",
    "make_plan",
]

Shapes = Literal["same", "discover", "once"]
Axis = str | int | None
Pairs = Sequence[tuple[SupportsIndex, SupportsIndex]]
Operation = Literal["shift", "exchange", "permute"]


def find_route(
    binding: Binding,
    operation: Operation,
    shapes: Shapes,
    axis: Axis = None,
    offset: int = 0,
    pairs: tuple[tuple[int, int], ...] = (),
) -> Route:
    """Return the route of an operation.

    Raises:
        TopologyError: No such axis, or no axes at all.
        ArgumentError: Pairs that are no permutation, or a ``shapes`` that there is not.
    """
    key = (operation, axis, offset, pairs, shapes)
    route = binding.routes.get(key)
    if route is None:
        check_shapes(shapes, operation)
        plan = make_plan(binding.topology, binding.engine.rank, operation, axis, offset, pairs)
        route = binding.routes[key] = Route(plan, discover=shapes != "same", once=shapes == "once")
    return route


def make_plan(
    topology: Topology,
    rank: int,
    operation: Operation,
    axis: Axis,
    offset: int,
    pairs: tuple[tuple[int, int], ...],
) -> Plan:
    """Return the plan of one rank; the errors are those of :func:`find_route`."""
    if operation == "permute":
        return plan_permute(topology.size, rank, pairs)
    if operation not in ("shift", "exchange"):
        raise ArgumentError(f"explain: expected shift, exchange or permute, got {operation!r}")
    # A Graph has the method too: it raises, and says what works instead.
    index = topology.axis_index(axis, operation)
    assert isinstance(topology, Cartesian)
    if operation == "shift":
        return plan_shift(topology, rank, index, offset)
    return plan_exchange(topology, rank, index)


def as_pairs(pairs: Pairs) -> tuple[tuple[int, int], ...]:
    """Return (source, destination) pairs as plain ints.

    Raises:
        ArgumentError: Something else than pairs of ints.
    """
    try:
        return tuple((_rank(source), _rank(destination)) for source, destination in pairs)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"permute: pairs must hold (source, destination) pairs of ranks, got {pairs!r}"
        ) from None


def _rank(value: SupportsIndex) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def check_shapes(shapes: str, operation: str) -> None:
    """Refuse a ``shapes`` that there is not."""
    if shapes not in ("same", "discover", "once"):
        raise ArgumentError(
            f"{operation}: shapes must be 'same', 'discover' or 'once', got {shapes!r}; like= gives"
            " other shapes"
        )
