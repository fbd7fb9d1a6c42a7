"""The edges of well-known graphs, as pairs (source, destination) in a fixed order."""

from __future__ import annotations

import math

from ..errors import TopologyError

__all__ = ["Edges", "complete", "exponential", "grid", "hops", "hypercube", "star"]

Edges = tuple[tuple[int, int], ...]


def hops(size: int) -> tuple[int, ...]:
    """Return the powers of two below ``size``: the offsets of an exponential graph."""
    return tuple(2**k for k in range((size - 1).bit_length()))


def exponential(size: int) -> Edges:
    """Return edges from each rank to rank + 1, + 2, + 4, ..."""
    return tuple((rank, (rank + hop) % size) for hop in hops(size) for rank in range(size))


def star(size: int, centre: int) -> Edges:
    """Return edges between the centre and every other rank, both ways."""
    others = [rank for rank in range(size) if rank != centre]
    return tuple(pair for rank in others for pair in ((centre, rank), (rank, centre)))


def complete(size: int) -> Edges:
    """Return edges from each rank to every other one, the nearest on its right first."""
    return tuple((rank, (rank + hop) % size) for hop in range(1, size) for rank in range(size))


def hypercube(size: int) -> Edges:
    """Return edges between ranks whose numbers differ in one bit.

    Raises:
        TopologyError: ``size`` is no power of two.
    """
    if size & (size - 1):
        raise TopologyError(
            f"Graph.hypercube: size must be a power of two, got {size}; Graph.exponential takes"
            " any size"
        )
    return tuple((rank, rank ^ bit) for bit in hops(size) for rank in range(size))


def grid(shape: tuple[int, ...]) -> Edges:
    """Return edges between neighbours on an open grid, numbered in row-major order."""
    edges: list[tuple[int, int]] = []
    size = math.prod(shape)
    for axis, extent in enumerate(shape):
        stride = math.prod(shape[axis + 1 :])
        for rank in range(size):
            if rank // stride % extent + 1 < extent:
                edges += [(rank, rank + stride), (rank + stride, rank)]
    return tuple(edges)
