"""What callers pass, made plain: ints that are ints, bools that are bools, tuples with an order.

A topology is part of what ranks must agree on, by its repr. So numpy's integers are taken but kept
as ``int``, and what has no order (a set) is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import TypeVar

from ..errors import TopologyError

__all__ = ["below", "flag", "integer", "ordered", "plain", "position", "positive"]

T = TypeVar("T")


def plain(value: object) -> int | None:
    """Return ``value`` as a plain int, ``None`` if it is something else."""
    # bool has __index__ too, but Ring(True) or an offset of True is always a mistake.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several elements, or of floats
        return None


def integer(operation: str, what: str, value: object) -> int:
    """Return ``value`` as a plain int."""
    number = plain(value)
    if number is None:
        raise TopologyError(
            f"{operation}: {what} must be an int, got {value!r} of type {type(value).__name__}"
        )
    return number


def positive(operation: str, what: str, value: object) -> int:
    """Return ``value`` as a plain int of at least 1."""
    number = integer(operation, what, value)
    if number < 1:
        raise TopologyError(
            f"{operation}: {what} must be at least 1, got {number}; one rank alone is 1"
        )
    return number


def below(operation: str, what: str, value: object, size: int, remedy: str = "") -> int:
    """Return ``value`` as a plain int in ``0..size - 1``; negative ones do not count back."""
    number = integer(operation, what, value)
    if not 0 <= number < size:
        raise TopologyError(f"{operation}: {what} must be in 0..{size - 1}, got {number}{remedy}")
    return number


def position(operation: str, rank: object, size: int) -> int:
    """Return ``rank`` as a plain int in ``0..size - 1``."""
    remedy = "; a rank is the position in the topology, not the global rank"
    return below(operation, "rank", rank, size, remedy)


def flag(operation: str, what: str, value: object) -> bool:
    """Return ``value`` if it is a bool; 0 and 1 are refused, and so are numpy's bools."""
    if not isinstance(value, bool):
        raise TopologyError(f"{operation}: {what} must be True or False, got {value!r}")
    return value


def ordered(operation: str, what: str, values: Iterable[T]) -> tuple[T, ...]:
    """Return ``values`` as a tuple; strings, sets and mappings are refused."""
    if not isinstance(values, str | Set | Mapping):
        try:
            return tuple(values)
        except TypeError:  # not iterable: the same error as for what has no order
            pass
    raise TopologyError(
        f"{operation}: {what} must be a sequence, got {values!r}; pass a tuple or a list"
    )
