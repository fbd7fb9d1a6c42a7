"""Collective operations on one process: lists of what each rank of a line has, in plain torch.

The reference of tests/collective. Nothing here knows of ranks, plans or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from collectives import Graph, Mesh, Ring
from collectives.topology import Cartesian, Topology

__all__ = ["COLUMNS", "LINES", "REDUCTIONS", "all_to_all", "line", "split", "tensor"]

# Small enough for one exchange, and large enough to go round a ring, whatever the size.
COLUMNS = (3, 70_000)

LINES: list[tuple[Topology, str | None]] = [
    *((Ring(size, periodic=size != 3), None) for size in (1, 2, 3, 5)),
    (Graph(3, [(0, 1)]), None),
    (Mesh((1, 2), axes=("y", "x")), "x"),
    (Mesh((2, 2), axes=("y", "x"), periodic=True), "y"),
    (Mesh((2, 2), axes=("y", "x")), None),
    (Mesh((3, 2), axes=("y", "x"), periodic=(False, True)), "y"),
    (Mesh((3, 2), axes=("y", "x"), periodic=(False, True)), "x"),
    (Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, True)), "y"),
]


def line(topology: Topology, rank: int, axis: str | None) -> list[int]:
    """Return the ranks that differ from ``rank`` on the axis alone, by their place on it."""
    if axis is None:
        return list(range(topology.size))
    assert isinstance(topology, Cartesian)
    index, at = topology.axes.index(axis), topology.coords(rank)
    every = [(topology.coords(r), r) for r in range(topology.size)]
    near = [
        (c[index], r)
        for c, r in every
        if c[:index] + c[index + 1 :] == at[:index] + at[index + 1 :]
    ]
    return [r for _, r in sorted(near)]


def tensor(rank: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return unequal values for each rank."""
    generator = torch.Generator().manual_seed(rank + 1)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def split(x: Tensor, count: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Return equal parts, and what is left over one by one to the first."""
    return torch.tensor_split(x, count, dim)


def all_to_all(xs: Sequence[Tensor], dim: int = 0) -> list[Tensor]:
    """Return what each rank has afterwards."""
    parts = [split(x, len(xs), dim) for x in xs]
    return [torch.cat([mine[q] for mine in parts], dim) for q in range(len(xs))]


REDUCTIONS: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "sum": lambda xs: torch.stack(list(xs)).sum(0),
    "mean": lambda xs: torch.stack(list(xs)).mean(0),
    "max": lambda xs: torch.stack(list(xs)).amax(0),
}
