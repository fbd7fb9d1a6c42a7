"""Topologies that the ring operations are tested on, and the blocks of their ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from collectives import Mesh, Ring
from collectives.topology import Cartesian

__all__ = ["CASES", "Case", "block", "line", "sources"]

Case = tuple[Cartesian, str]

RINGS: list[Case] = [
    (Ring(size, periodic=periodic), "ring") for size in (1, 2, 3, 5) for periodic in (True, False)
]
MESHES: list[Case] = [
    (Mesh((1, 2), axes=("y", "x"), periodic=(False, True)), "y"),
    (Mesh((2, 2), axes=("y", "x"), periodic=(True, False)), "y"),
    (Mesh((2, 2), axes=("y", "x"), periodic=(True, False)), "x"),
    (Mesh((3, 2), axes=("y", "x"), periodic=(True, False)), "y"),
    (Mesh((3, 2), axes=("y", "x"), periodic=(False, True)), "y"),
    (Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, False)), "x"),
]
CASES = RINGS + MESHES


def block(rank: int) -> Tensor:
    """Return what that rank has."""
    generator = torch.Generator().manual_seed(rank + 1)
    return torch.randn(3, 2, dtype=torch.float64, generator=generator)


def line(case: Case, rank: int) -> tuple[tuple[int, ...], int, bool]:
    """Return the ranks along the axis, the position of this one, and whether blocks wrap."""
    topology, axis = case
    ranks = topology.along(axis, rank)
    return ranks, ranks.index(rank), topology.periodic_axes[topology.axis_index(axis)]


def sources(case: Case, rank: int) -> list[int]:
    """Return whose blocks come to a rank, in their order."""
    ranks, here, periodic = line(case, rank)
    hops = range(len(ranks)) if periodic else range(here + 1)
    return [ranks[(here - hop) % len(ranks)] for hop in hops]
