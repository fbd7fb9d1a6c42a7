"""Weights of a graph's edges, by receiver: what a rank takes from whom, and keeps of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import SupportsFloat

from ..errors import TopologyError
from .arguments import ordered
from .families import Edges

__all__ = ["EXACT", "Weights", "check_weights", "metropolis", "numbers", "rest", "uniform"]

EXACT = 1e-9  # how far from one a sum of weights may be: much more than rounding, less than meant

Weights = tuple[float, ...]


def uniform(size: int, edges: Edges) -> tuple[Weights, Weights]:
    """Return the weights by which a rank takes as much from each edge as it keeps of its own."""
    degrees = _arriving(size, edges)
    return (
        tuple(1 / (degrees[destination] + 1) for _, destination in edges),
        tuple(1 / (degree + 1) for degree in degrees),
    )


def metropolis(size: int, edges: Edges) -> tuple[Weights, Weights]:
    """Return the weights ``1 / (1 + the larger of both ends' degrees)``.

    Raises:
        TopologyError: An edge has no counterpart the other way.
    """
    counts: dict[tuple[int, int], int] = {}
    for edge in edges:
        counts[edge] = counts.get(edge, 0) + 1
    for (source, destination), count in counts.items():
        back = counts.get((destination, source), 0)
        if back != count:
            raise TopologyError(
                "Graph.metropolis: every edge must have its counterpart, got"
                f" {_times(count)} {source}->{destination} and {_times(back)}"
                f" {destination}->{source}; add the missing edges, or give weights="
            )
    degrees = _arriving(size, edges)
    weights = tuple(1 / (1 + max(degrees[s], degrees[d])) for s, d in edges)
    return weights, rest(size, edges, weights)


def rest(size: int, edges: Edges, weights: Weights) -> Weights:
    """Return what each rank keeps of its own, if that and what it takes make one.

    Raises:
        TopologyError: A rank takes more than one.
    """
    taken: list[list[float]] = [[] for _ in range(size)]
    for (_, destination), weight in zip(edges, weights, strict=True):
        taken[destination].append(weight)
    sums = [math.fsum(parts) for parts in taken]
    for rank, total in enumerate(sums):
        if total > 1 + EXACT:
            raise TopologyError(
                f"Graph: the weights of the edges to a rank must sum to at most 1, got {total} at"
                f" rank {rank}; divide them, or say with self_weights= what each rank keeps"
            )
    return tuple(max(0.0, 1 - total) for total in sums)


def numbers(what: str, values: Iterable[SupportsFloat], count: int) -> Weights:
    """Return ``count`` finite weights as plain floats."""
    given = ordered("Graph", what, values)
    try:
        found = tuple(float(value) for value in given)
    except (TypeError, ValueError):
        found = ()
    if len(found) != count or not all(map(math.isfinite, found)):
        raise TopologyError(f"Graph: {what} must be {count} finite numbers, got {given!r}")
    return found


def check_weights(operation: str, rows: Sequence[float]) -> None:
    """Refuse weights by which the average of equal values is another value.

    Args:
        operation: What the error text starts with.
        rows: Of each rank, the sum of what it takes and what it keeps.

    Raises:
        TopologyError: A sum is not one.
    """
    for rank, total in enumerate(rows):
        if abs(total - 1) > EXACT:
            raise TopologyError(
                f"{operation}: the weights of each rank, its own included, must sum to 1, got"
                f" {total} at rank {rank}; leave self_weights= out, and the rank keeps what its"
                " edges leave, or use graph.metropolis()"
            )


def _arriving(size: int, edges: Edges) -> list[int]:
    degrees = [0] * size
    for _, destination in edges:
        degrees[destination] += 1
    return degrees


def _times(count: int) -> str:
    return "no" if count == 0 else "one" if count == 1 else str(count)
