"""All ranks of a mesh at once: what one gives along any line, its neighbour there takes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Mesh
from collectives.errors import ArgumentError
from collectives.halo.survey import Request, Sharded, survey
from collectives.strips import Margin


def request_for(mesh: Mesh, margin: Margin) -> Request:
    sharded = [Sharded(dim, dim, wraps, margin) for dim, wraps in enumerate(mesh.periodic_axes)]
    return Request("halos", "zeros", tuple(sharded))


def table_of(mesh: Mesh, sizes: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """The size of each rank's shard along each dim: of a field cut along rows and columns."""
    return tuple(
        tuple(sizes[axis][at] for axis, at in enumerate(mesh.coords(rank)))
        for rank in range(mesh.size)
    )


@st.composite
def meshes(draw: st.DrawFn) -> tuple[Mesh, list[list[int]]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    periodic = tuple(draw(st.booleans()) for _ in shape)
    sizes = [draw(st.lists(st.integers(2, 6), min_size=n, max_size=n)) for n in shape]
    return Mesh(shape, periodic=periodic), sizes


@settings(max_examples=100, deadline=None)
@given(case=meshes(), before=st.integers(0, 2), after=st.integers(0, 2))
def test_each_gift_has_a_taker_on_every_line(
    case: tuple[Mesh, list[list[int]]], before: int, after: int
) -> None:
    mesh, sizes = case
    surveyed = survey(mesh, request_for(mesh, Margin(before, after)), table_of(mesh, sizes))
    for axis, lines in enumerate(surveyed):
        assert sorted(rank for line in lines for rank in line) == list(range(mesh.size))
        strip_of = {
            rank: strip
            for line, strips in lines.items()
            for rank, strip in zip(line, strips, strict=True)
        }
        for rank, strip in strip_of.items():
            left, right = mesh.neighbours(rank, axis, 1)
            assert strip.size == sizes[axis][mesh.coords(rank)[axis]]
            assert strip.from_left == (before if left is not None else 0)
            assert strip.from_right == (after if right is not None else 0)
            assert strip.to_left == (strip_of[left].from_right if left is not None else 0)
            assert strip.to_right == (strip_of[right].from_left if right is not None else 0)


@settings(max_examples=50, deadline=None)
@given(
    case=meshes().filter(lambda case: len(case[1]) > 1 and case[0].size > 1),
    rank=st.integers(0, 63),
    dim=st.integers(0, 2),
)
def test_a_shard_of_another_size_than_those_beside_it_is_refused(
    case: tuple[Mesh, list[list[int]]], rank: int, dim: int
) -> None:
    mesh, sizes = case
    rank, dim = rank % mesh.size, dim % len(sizes)
    rows = [list(row) for row in table_of(mesh, sizes)]
    rows[rank][dim] += 1
    request = request_for(mesh, Margin(0, 0))
    if mesh.size == mesh.shape[dim]:  # nobody is beside it but along the dim itself
        survey(mesh, request, tuple(map(tuple, rows)))
        return
    with pytest.raises(ArgumentError, match=f"must have the same size along dim {dim}"):
        survey(mesh, request, tuple(map(tuple, rows)))
