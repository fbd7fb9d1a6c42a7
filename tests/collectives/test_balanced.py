"""Mesh.balanced against every shape there is, and against the examples of MPI_Dims_create."""

from __future__ import annotations

import itertools
import math

import pytest

from collectives.topology import Mesh


def balanced_by_force(size: int, ndim: int) -> tuple[int, ...]:
    """The best of every way to choose ``ndim`` extents, good or bad."""
    every = itertools.product(range(1, size + 1), repeat=ndim - 1)
    shapes = {
        tuple(sorted((*some, size // math.prod(some)), reverse=True))
        for some in every
        if size % math.prod(some) == 0
    }
    closest = min(shape[0] - shape[-1] for shape in shapes)
    return min(shape for shape in shapes if shape[0] - shape[-1] == closest)


@pytest.mark.parametrize(("ndim", "largest"), [(1, 64), (2, 64), (3, 64), (4, 24)])
def test_balanced_finds_the_closest_extents_of_all(ndim: int, largest: int) -> None:
    for size in range(1, largest + 1):
        assert Mesh.balanced(size, ndim).shape == balanced_by_force(size, ndim)


def test_balanced_agrees_with_the_examples_of_the_mpi_standard() -> None:
    assert Mesh.balanced(6, 2).shape == (3, 2)
    assert Mesh.balanced(7, 2).shape == (7, 1)


def test_balanced_looks_at_both_ends_of_the_shape_not_only_at_the_largest_extent() -> None:
    assert Mesh.balanced(4620, 3).shape == (22, 15, 14)  # and not (21, 20, 11)


def test_balanced_names_and_closes_axes_as_the_class_does() -> None:
    mesh = Mesh.balanced(12, 2, axes=("y", "x"), periodic={"x": True})
    assert mesh == Mesh((4, 3), axes=("y", "x"), periodic=(False, True))
