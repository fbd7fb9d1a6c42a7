"""The laws of Ring, Mesh and Graph, on sizes 1 to 64."""

from __future__ import annotations

import copy
import doctest
import importlib
import itertools
import math
import pickle
import pkgutil
import time
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collectives.topology
from collectives.topology import Cartesian, Graph, Mesh, Ring, Shift, Topology

LARGEST = 64
# The same examples in every run; no deadline, since a loaded machine is not a wrong result.
law = settings(deadline=None, derandomize=True, max_examples=200)

rings = st.builds(Ring, st.integers(1, LARGEST), periodic=st.booleans())


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Meshes of one to four axes and up to 64 ranks."""
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        shape.append(draw(st.integers(1, LARGEST // math.prod(shape))))
    names = st.lists(st.text(min_size=1), min_size=len(shape), max_size=len(shape), unique=True)
    flags = st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))
    return Mesh(shape, axes=draw(st.none() | names), periodic=draw(st.booleans() | flags))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs with repeated edges and loops."""
    size = draw(st.integers(1, LARGEST))
    rank = st.integers(0, size - 1)
    return Graph(size, draw(st.lists(st.tuples(rank, rank), max_size=80)))


grids = st.one_of(rings, meshes())
topologies = st.one_of(rings, meshes(), graphs())


@st.composite
def lines(draw: st.DrawFn) -> tuple[Cartesian, int, int]:
    """A grid, one of its axes, and an offset that may pass every end several times."""
    grid = draw(grids)
    axis = draw(st.integers(0, len(grid.shape) - 1))
    reach = 2 * grid.shape[axis] + 1
    return grid, axis, draw(st.integers(-reach, reach))


def rank_by_coords(grid: Cartesian, rank: int, axis: int, distance: int) -> int | None:
    """Move by coordinates, without the strides that the library uses."""
    coords = list(grid.coords(rank))
    coords[axis] += distance
    if grid.periodic_axes[axis]:
        coords[axis] %= grid.shape[axis]
    return grid.rank_of(coords) if 0 <= coords[axis] < grid.shape[axis] else None


@law
@given(meshes())
def test_ranks_are_numbered_in_row_major_order(mesh: Mesh) -> None:
    in_order = list(itertools.product(*(range(extent) for extent in mesh.shape)))
    assert [mesh.coords(rank) for rank in range(mesh.size)] == in_order
    assert [mesh.rank_of(coords) for coords in in_order] == list(range(mesh.size))


@law
@given(lines())
def test_neighbours_are_those_that_the_coordinates_give(line: tuple[Cartesian, int, int]) -> None:
    grid, axis, offset = line
    for rank in range(grid.size):
        assert grid.neighbours(rank, axis, offset) == Shift(
            source=rank_by_coords(grid, rank, axis, -offset),
            destination=rank_by_coords(grid, rank, axis, offset),
        )


@law
@given(lines())
def test_every_send_meets_its_receive(line: tuple[Cartesian, int, int]) -> None:
    grid, axis, offset = line
    ends = [grid.neighbours(rank, axis, offset) for rank in range(grid.size)]
    sends = {
        (rank, end.destination) for rank, end in enumerate(ends) if end.destination is not None
    }
    receives = {(end.source, rank) for rank, end in enumerate(ends) if end.source is not None}
    assert sends == receives


@law
@given(lines())
def test_shifting_there_and_back_is_the_identity_on_a_periodic_axis(
    line: tuple[Cartesian, int, int],
) -> None:
    grid, axis, offset = line
    closed = Mesh(grid.shape, periodic=True)
    for rank in range(closed.size):
        there = closed.shift(rank, axis, offset).destination
        assert there is not None
        assert closed.shift(there, axis, -offset).destination == rank


@law
@given(lines())
def test_an_open_axis_ends_where_its_coordinates_end(line: tuple[Cartesian, int, int]) -> None:
    grid, axis, offset = line
    opened = Mesh(grid.shape)
    for rank in range(opened.size):
        inside = 0 <= opened.coords(rank)[axis] + offset < opened.shape[axis]
        assert (opened.shift(rank, axis, offset).destination is not None) == inside


@law
@given(grids, st.data())
def test_lines_along_an_axis_partition_the_ranks_in_the_order_of_the_coordinate(
    grid: Cartesian, data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, len(grid.shape) - 1))
    lines_of_ranks = {grid.along(axis, rank) for rank in range(grid.size)}
    assert sorted(itertools.chain(*lines_of_ranks)) == list(range(grid.size))
    for line in lines_of_ranks:
        assert [grid.coords(rank)[axis] for rank in line] == list(range(grid.shape[axis]))
        others = {grid.coords(rank)[:axis] + grid.coords(rank)[axis + 1 :] for rank in line}
        assert len(others) == 1
        assert all(grid.along(grid.axes[axis], rank) == line for rank in line)


@law
@given(rings, st.integers(-130, 130))
def test_a_ring_is_the_mesh_with_one_axis(ring: Ring, offset: int) -> None:
    mesh = Mesh((ring.size,), axes=("ring",), periodic=ring.periodic)
    assert (ring.shape, ring.axes, ring.periodic_axes) == (
        mesh.shape,
        mesh.axes,
        mesh.periodic_axes,
    )
    for rank in range(ring.size):
        assert ring.shift(rank, offset) == mesh.shift(rank, None, offset)
        assert ring.left(rank) == ring.shift(rank).source == ring.shift(rank, -1).destination
        assert ring.right(rank) == ring.shift(rank).destination == ring.shift(rank, -1).source


@law
@given(graphs())
def test_a_graph_keeps_its_edges_and_their_order_from_both_ends(graph: Graph) -> None:
    for rank in range(graph.size):
        leaving = [edge for edge in graph.edges if edge[0] == rank]
        arriving = [edge for edge in graph.edges if edge[1] == rank]
        assert [(rank, peer) for peer in graph.destinations(rank)] == leaving
        assert [(peer, rank) for peer in graph.sources(rank)] == arriving
        assert graph.reverse().sources(rank) == graph.destinations(rank)
    assert graph.reverse().reverse() == graph


@law
@given(topologies)
def test_the_repr_can_be_pasted(topology: Topology) -> None:
    pasted = eval(repr(topology), {"Ring": Ring, "Mesh": Mesh, "Graph": Graph})
    assert type(pasted) is type(topology)
    assert pasted == topology


@law
@given(topologies)
def test_copies_and_pickles_are_equal_and_hash_alike(topology: Topology) -> None:
    through_pickle = pickle.loads(pickle.dumps(topology))
    for other in (through_pickle, copy.copy(topology), copy.deepcopy(topology)):
        assert type(other) is type(topology)
        assert other == topology
        assert hash(other) == hash(topology)
        assert repr(other) == repr(topology)


def test_topologies_that_differ_in_anything_are_not_equal() -> None:
    different: list[Topology] = [
        Ring(4),
        Ring(5),
        Ring(4, periodic=False),
        Mesh((4,), axes=("ring",), periodic=True),
        Mesh((2, 2)),
        Mesh((2, 2), axes=("y", "x")),
        Mesh((2, 2), periodic=(True, False)),
        Mesh((4, 1)),
        Graph(4, ()),
        Graph(4, [(0, 1), (1, 0)]),
        Graph(4, [(1, 0), (0, 1)]),
    ]
    assert len(set(different)) == len({repr(topology) for topology in different}) == len(different)


@pytest.mark.parametrize("topology", [Ring(2), Mesh((2,)), Graph(2, ())], ids=repr)
def test_a_topology_cannot_be_changed(topology: Topology) -> None:
    with pytest.raises(FrozenInstanceError):
        topology.size = 3  # type: ignore[misc]  # that it is refused is the test
    with pytest.raises((AttributeError, TypeError)):
        topology.note = "new"  # type: ignore[attr-defined]  # the same


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Ring(4), "Ring(4)"),
        (Ring(4, periodic=False), "Ring(4, periodic=False)"),
        (Mesh((4,)), "Mesh((4,))"),
        (Mesh((2, 3), axes=("axis0", "axis1"), periodic=(False, False)), "Mesh((2, 3))"),
        (Mesh((2, 3), periodic=(True, True)), "Mesh((2, 3), periodic=True)"),
        (
            Mesh((2, 3), axes=("y", "x"), periodic=(True, False)),
            "Mesh((2, 3), axes=('y', 'x'), periodic=(True, False))",
        ),
        (Graph(3, [(0, 1), (2, 2)]), "Graph(3, ((0, 1), (2, 2)))"),
    ],
)
def test_the_repr_is_short_and_leaves_defaults_out(topology: Topology, text: str) -> None:
    assert repr(topology) == text


def test_a_ring_of_one_is_its_own_neighbour() -> None:
    for offset in (-2, -1, 0, 1, 2):
        assert Ring(1).shift(0, offset) == Shift(0, 0)
    assert Ring(1, periodic=False).shift(0) == Shift(None, None)
    assert Ring(1, periodic=False).shift(0, 0) == Shift(0, 0)


def test_left_and_right_of_a_ring_of_two_are_the_same_rank() -> None:
    assert [(Ring(2).left(rank), Ring(2).right(rank)) for rank in (0, 1)] == [(1, 1), (0, 0)]


def test_an_axis_of_extent_one_has_no_other_rank() -> None:
    mesh = Mesh((1, 3), axes=("y", "x"), periodic={"y": True})
    assert mesh.shift(1, "y", 5) == Shift(1, 1)
    assert mesh.along("y", 1) == (1,)
    assert Mesh((1, 3)).shift(1, "axis0") == Shift(None, None)


def test_periodicity_by_name_leaves_other_axes_open() -> None:
    by_name = Mesh((2, 3), axes=("y", "x"), periodic={"x": True})
    assert by_name == Mesh((2, 3), axes=("y", "x"), periodic=(False, True))
    assert Mesh((2, 3), periodic={}) == Mesh((2, 3))


def test_an_axis_is_found_by_name_by_index_and_alone_without_either() -> None:
    mesh = Mesh((2, 3), axes=("y", "x"))
    assert [mesh.axis_index(axis) for axis in ("y", "x", 0, 1)] == [0, 1, 0, 1]
    assert Ring(3).axis_index(None) == Ring(3).axis_index("ring") == Ring(3).axis_index(0) == 0


def test_numpys_integers_and_strings_are_kept_as_plain_ones() -> None:
    mesh = Mesh(np.array([2, 3]).tolist(), axes=[np.str_("y"), np.str_("x")])
    assert Mesh([np.int32(2), np.int64(3)], axes=("y", "x")) == mesh
    assert repr(mesh) == "Mesh((2, 3), axes=('y', 'x'))"
    assert repr(Ring(np.int64(4))) == "Ring(4)"
    assert repr(Graph(np.uint8(2), [(np.int64(0), np.int64(1))])) == "Graph(2, ((0, 1),))"
    ends = mesh.shift(np.int64(4), "x", np.int8(-1))
    assert ends == Shift(source=5, destination=3)
    assert [type(end) for end in ends] == [int, int]


def test_all_neighbours_and_lines_of_a_thousand_ranks_take_no_time() -> None:
    mesh = Mesh((32, 32), periodic=True)
    start = time.process_time()
    for rank, axis in itertools.product(range(mesh.size), (0, 1)):
        mesh.neighbours(rank, axis, 1)
        mesh.along(axis, rank)
    assert time.process_time() - start < 1.0  # 0.03 s when written: for what grows with size**2


MODULES = [
    "collectives.topology",
    *(
        f"collectives.topology.{m.name}"
        for m in pkgutil.iter_modules(collectives.topology.__path__)
    ),
]


def test_the_examples_in_the_docstrings_are_true() -> None:
    others = {"Mesh": Mesh, "Ring": Ring}
    modules = {name: importlib.import_module(name) for name in MODULES}
    results = {name: doctest.testmod(m, extraglobs=others) for name, m in modules.items()}
    assert {name: result.failed for name, result in results.items() if result.failed} == {}
    documented = {name.rpartition(".")[2] for name, result in results.items() if result.attempted}
    assert documented >= {"topology", "ring", "mesh", "graph", "balanced", "schedule"}
