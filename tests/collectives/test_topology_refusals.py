"""What Ring, Mesh and Graph refuse, and that the error says what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives.errors import TopologyError
from collectives.topology import Cartesian, Graph, Mesh, Ring, Topology

# Wrong types are passed on purpose, so the calls go through names without types.
ring: Any = Ring
mesh: Any = Mesh
graph: Any = Graph

TWO_AXES: Any = Mesh((2, 3), axes=("y", "x"))
STAR: Any = Graph(3, [(0, 1), (0, 2)])


@pytest.mark.parametrize("size", [0, -1, True, False, 2.0, "4", None, [4], np.array([2, 3])])
@pytest.mark.parametrize(
    ("operation", "make"),
    [
        ("Ring: size", ring),
        ("Mesh: extent of axis 1", lambda size: mesh((2, size))),
        ("Mesh.balanced: size", lambda size: mesh.balanced(size, 2)),
        ("Mesh.balanced: ndim", lambda size: mesh.balanced(4, size)),
        ("Graph: size", lambda size: graph(size, ())),
    ],
)
def test_a_size_must_be_a_positive_int(
    operation: str, make: Callable[[object], Topology], size: object
) -> None:
    with pytest.raises(TopologyError, match=rf"^{operation} must be (an int|at least 1), got "):
        make(size)


@pytest.mark.parametrize("rank", [-1, 6, 7, True, 1.0, "0", None, np.float64(1)])
@pytest.mark.parametrize(
    ("operation", "ask"),
    [
        ("Ring(6).left", lambda rank: ring(6).left(rank)),
        ("Ring(6).right", lambda rank: ring(6).right(rank)),
        ("Ring(6).shift", lambda rank: ring(6).shift(rank)),
        ("Mesh((2, 3), axes=('y', 'x')).shift", lambda rank: TWO_AXES.shift(rank, "x")),
        ("Mesh((2, 3), axes=('y', 'x')).coords", TWO_AXES.coords),
        ("Mesh((2, 3), axes=('y', 'x')).along", lambda rank: TWO_AXES.along("x", rank)),
        ("Mesh((2, 3), axes=('y', 'x')).neighbours", lambda rank: TWO_AXES.neighbours(rank, 0, 1)),
        ("Graph.sources", lambda rank: graph(6, ()).sources(rank)),
        ("Graph.destinations", lambda rank: graph(6, ()).destinations(rank)),
    ],
)
def test_a_rank_must_be_a_position_in_the_topology(
    operation: str, ask: Callable[[object], object], rank: object
) -> None:
    with pytest.raises(TopologyError) as caught:
        ask(rank)
    assert str(caught.value).startswith(f"{operation}: rank must be ")


def test_the_error_for_a_rank_says_the_range_what_came_and_what_a_rank_is() -> None:
    with pytest.raises(TopologyError) as caught:
        Ring(4).left(7)
    assert str(caught.value) == (
        "Ring(4).left: rank must be in 0..3, got 7; "
        "a rank is the position in the topology, not the global rank"
    )


@pytest.mark.parametrize("offset", [0.5, "1", None, True, [1]])
@pytest.mark.parametrize(
    "ask",
    [
        lambda offset: ring(4).shift(0, offset),
        lambda offset: TWO_AXES.shift(0, "x", offset),
        lambda offset: TWO_AXES.neighbours(0, 1, offset),
    ],
    ids=["Ring.shift", "Mesh.shift", "neighbours"],
)
def test_an_offset_must_be_an_int(ask: Callable[[object], object], offset: object) -> None:
    with pytest.raises(TopologyError, match=r"offset must be an int, got "):
        ask(offset)


@pytest.mark.parametrize("axis", ["z", "", 2, -1, True, 1.0, None, ("y",)])
def test_an_unknown_axis_is_answered_with_the_names(axis: Any) -> None:
    expected = r"^halo_exchange: axis must be 'y', 'x' or in 0\.\.1, got "
    with pytest.raises(TopologyError, match=expected):
        TWO_AXES.axis_index(axis, "halo_exchange")
    for ask in (TWO_AXES.shift, lambda rank, axis: TWO_AXES.along(axis, rank)):
        with pytest.raises(TopologyError, match=r"axis must be 'y', 'x' or in 0\.\.1, got "):
            ask(0, axis)


def test_leaving_the_axis_out_where_there_are_several_is_answered_with_a_remedy() -> None:
    with pytest.raises(TopologyError, match=r"got None; there are several, so name one$"):
        TWO_AXES.shift(0, None)


@pytest.mark.parametrize("axis", [None, "ring", 0])
def test_a_graph_has_no_axes_and_says_what_works(axis: Any) -> None:
    with pytest.raises(TopologyError) as caught:
        STAR.axis_index(axis, "shift")
    text = str(caught.value)
    assert text.startswith("shift: a Graph has no axes: expected a Ring or a Mesh, got a Graph")
    assert "use permute" in text


@pytest.mark.parametrize(
    ("coords", "text"),
    [
        ((), "coords must be 2 ints, one per axis, got ()"),
        ((0,), "coords must be 2 ints, one per axis, got (0,)"),
        ((0, 0, 0), "coords must be 2 ints, one per axis, got (0, 0, 0)"),
        ((2, 0), "coordinate on axis 'y' must be in 0..1, got 2"),
        ((0, -1), "coordinate on axis 'x' must be in 0..2, got -1"),
        ((0, 1.0), "coordinate on axis 'x' must be an int, got 1.0 of type float"),
        ((True, 0), "coordinate on axis 'y' must be an int, got True of type bool"),
        (4, "coords must be a sequence, got 4"),
        ({0, 1}, "coords must be a sequence, got {0, 1}"),
    ],
)
def test_coords_must_be_one_int_per_axis_inside_of_it(coords: object, text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        TWO_AXES.rank_of(coords)
    assert str(caught.value).startswith(f"Mesh((2, 3), axes=('y', 'x')).rank_of: {text}")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mesh(()), "shape must have at least one axis, got ()"),
        (lambda: mesh(4), "shape must be a sequence, got 4"),
        (lambda: mesh({2, 3}), "shape must be a sequence, got {2, 3}"),
        (lambda: mesh({"y": 2}), "shape must be a sequence, got {'y': 2}"),
        (lambda: mesh(np.array(4)), "shape must be a sequence, got array(4)"),
        (lambda: mesh((2, 3), axes=("y",)), "axes must be 2 unique names, one per axis, got"),
        (lambda: mesh((2, 3), axes=("y", "y")), "axes must be 2 unique names, one per axis, got"),
        (lambda: mesh((2, 3), axes=()), "axes must be 2 unique names, one per axis, got ()"),
        (lambda: mesh((2, 3), axes=("y", "")), "axes must be non-empty strings, got ('y', '')"),
        (lambda: mesh((2, 3), axes=("y", 1)), "axes must be non-empty strings, got ('y', 1)"),
        (lambda: mesh((2, 3), axes="yx"), "axes must be a sequence, got 'yx'"),
        (lambda: mesh((2, 3), periodic=(True,)), "periodic must be one bool for all or 2"),
        (lambda: mesh((2, 3), periodic=(1, 0)), "periodic on axis 'axis0' must be True or False"),
        (lambda: mesh((2, 3), periodic=1), "periodic must be a sequence, got 1"),
        (lambda: mesh((2, 3), periodic=None), "periodic must be a sequence, got None"),
        (lambda: mesh((2, 3), periodic="yx"), "periodic must be a sequence, got 'yx'"),
        (
            lambda: mesh((2, 3), axes=("y", "x"), periodic={"z": True}),
            "periodic must be by names among 'y', 'x', got ['z']",
        ),
        (
            lambda: mesh((2, 3), axes=("y", "x"), periodic={"y": 1}),
            "periodic on axis 'y' must be True or False, got 1",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_together_is_refused(
    make: Callable[[], Cartesian], text: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        make()
    assert str(caught.value).startswith(f"Mesh: {text}")


@pytest.mark.parametrize("periodic", [0, 1, None, "yes", (True,)])
def test_the_periodicity_of_a_ring_is_a_bool(periodic: object) -> None:
    with pytest.raises(TopologyError, match=r"^Ring: periodic must be True or False, got "):
        ring(4, periodic=periodic)


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([(0, 3)], "destination of edge 0 must be in 0..2, got 3"),
        ([(0, 1), (-1, 1)], "source of edge 1 must be in 0..2, got -1"),
        ([(0, 1, 2)], "edge 0 must be a pair (source, destination), got (0, 1, 2)"),
        ([(0,)], "edge 0 must be a pair (source, destination), got (0,)"),
        ([(0, True)], "destination of edge 0 must be an int, got True of type bool"),
        ([0, 1], "edge 0 must be a sequence, got 0"),
        (["01"], "edge 0 must be a sequence, got '01'"),
        ([{0, 1}], "edge 0 must be a sequence, got {0, 1}"),
        ({(0, 1)}, "edges must be a sequence, got {(0, 1)}"),
        ({0: 1}, "edges must be a sequence, got {0: 1}"),
        (None, "edges must be a sequence, got None"),
    ],
)
def test_edges_must_be_an_ordered_list_of_pairs_of_ranks(edges: object, text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        graph(3, edges)
    assert str(caught.value).startswith(f"Graph: {text}")
