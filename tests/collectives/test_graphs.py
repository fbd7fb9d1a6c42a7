"""Weights, mixing matrices and spectral gaps of all topologies; graphs of networkx."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.errors import TopologyError
from collectives.topology import Graph, Mesh, Ring, Topology
from tests.collectives.test_topology import graphs, grids, law

SIZES = range(1, 18)
NAMED = [Graph.exponential, Graph.star, Graph.complete]


@st.composite
def weighted(draw: st.DrawFn) -> Graph:
    """Graphs with any weights, those that ranks keep of their own included."""
    graph = draw(graphs())
    numbers = st.floats(-2, 2)
    weights = draw(st.lists(numbers, min_size=len(graph.edges), max_size=len(graph.edges)))
    own = draw(st.lists(numbers, min_size=graph.size, max_size=graph.size))
    return Graph(graph.size, graph.edges, weights, own)


@st.composite
def both_ways(draw: st.DrawFn) -> Graph:
    """Graphs in which every edge has its counterpart."""
    graph = draw(graphs())
    return Graph(graph.size, (*graph.edges, *graph.reverse().edges))


def by_hand(graph: Graph) -> list[list[float]]:
    graph = graph.weighted()
    assert graph.weights is not None
    assert graph.self_weights is not None
    rows = [[0.0] * graph.size for _ in range(graph.size)]
    for (source, destination), weight in zip(graph.edges, graph.weights, strict=True):
        rows[destination][source] += weight
    for rank, own in enumerate(graph.self_weights):
        rows[rank][rank] += own
    return rows


@law
@given(weighted())
def test_row_i_of_the_mixing_matrix_says_what_rank_i_takes(graph: Graph) -> None:
    np.testing.assert_allclose(graph.mixing_matrix(), by_hand(graph), atol=1e-12)


@law
@given(weighted())
def test_the_matrix_of_the_reversed_graph_is_the_transpose(graph: Graph) -> None:
    assert (graph.reverse().mixing_matrix() == graph.mixing_matrix().T).all()
    assert graph.reverse().reverse() == graph


@law
@given(st.one_of(weighted(), st.sampled_from([make(n) for make in NAMED for n in (1, 2, 5)])))
def test_the_repr_of_a_weighted_graph_can_be_pasted(graph: Graph) -> None:
    assert eval(repr(graph), {"Graph": Graph}) == graph


@law
@given(graphs())
def test_a_graph_without_weights_takes_as_much_from_each_edge_as_it_keeps(graph: Graph) -> None:
    matrix = graph.mixing_matrix()
    for rank in range(graph.size):
        arriving = Counter(graph.sources(rank))
        share = 1 / (arriving.total() + 1)
        for source in range(graph.size):
            own = 1 if source == rank else 0
            assert matrix[rank, source] == pytest.approx((arriving[source] + own) * share)


@law
@given(grids)
def test_rings_and_meshes_are_symmetric_and_doubly_stochastic(grid: Topology) -> None:
    matrix = grid.mixing_matrix()
    assert (matrix == matrix.T).all()
    assert grid.is_doubly_stochastic()


@law
@given(both_ways())
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(graph: Graph) -> None:
    matrix = graph.metropolis().mixing_matrix()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
    assert graph.metropolis().is_doubly_stochastic()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", NAMED, ids=lambda make: make.__name__)
def test_named_graphs_are_connected_and_doubly_stochastic(make: type[Graph], size: int) -> None:
    graph = make(size)  # type: ignore[call-arg]  # a function of the size
    assert graph.is_doubly_stochastic()
    assert graph.spectral_gap() > 0
    assert graph.size == size


@pytest.mark.parametrize(
    ("graph", "gap"),
    [
        (Graph.complete(7), 1.0),
        (Graph.complete(1), 1.0),
        (Graph.star(10), 0.1),
        (Graph.hypercube(16), 2 / 5),
        (Graph.exponential(16), 2 / 5),
        (Graph.exponential(20), 2 / 6),
        (Ring(6), 1 - (1 + 2 * math.cos(math.pi / 3)) / 3),
        (Ring(5, periodic=False), 1 - (1 + 2 * math.cos(math.pi / 5)) / 3),
        (Mesh((1, 1, 2)), 2 / 3),
        (Graph(4, [(0, 1), (1, 0), (2, 3), (3, 2)]), 0.0),
        (Graph(2, ()), 0.0),
    ],
    ids=repr,
)
def test_spectral_gaps_are_those_of_the_formulas(graph: Topology, gap: float) -> None:
    assert graph.spectral_gap() == pytest.approx(gap, abs=1e-11)


def test_the_hypercube_joins_ranks_that_differ_in_one_bit() -> None:
    cube = Graph.hypercube(8)
    assert all((a ^ b).bit_count() == 1 for a, b in cube.edges)
    assert len(set(cube.edges)) == len(cube.edges) == 8 * 3


@pytest.mark.parametrize("shape", [(1,), (4,), (2, 3), (1, 2, 2), (3, 3, 2)])
def test_a_grid_has_the_edges_of_the_open_mesh(shape: tuple[int, ...]) -> None:
    assert sorted(Graph.grid(shape).edges) == sorted(Mesh(shape).to_graph().edges)
    assert Graph.grid(shape).is_doubly_stochastic()


@law
@given(grids)
def test_the_graph_of_a_grid_has_an_edge_for_every_neighbour(grid: Ring | Mesh) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for rank in range(grid.size):
        for axis in range(len(grid.shape)):
            expected.update((rank, p) for p in grid.neighbours(rank, axis, 1) if p is not None)
    assert Counter(grid.to_graph().edges) == expected


@pytest.mark.parametrize("axis", ["y", "x"])
@pytest.mark.parametrize("make", [Graph.complete, Graph.star, Ring])
def test_a_graph_along_an_axis_mixes_the_lines_of_that_axis_alone(
    axis: str, make: type[Ring]
) -> None:
    mesh = Mesh((2, 3), axes=("y", "x"))
    line = make(mesh.shape[mesh.axis_index(axis)]).mixing_matrix()
    factors = (line, np.eye(3)) if axis == "y" else (np.eye(2), line)
    along = Graph.along(mesh, axis, make)
    np.testing.assert_allclose(along.mixing_matrix(), np.kron(*factors), atol=1e-15)


@law
@given(weighted())
def test_networkx_and_back_keeps_the_weights_of_all_edges(graph: Graph) -> None:
    network = graph.to_networkx()
    assert sorted(network.edges(keys=False)) == sorted(graph.edges)
    back = Graph.from_networkx(graph.to_networkx())
    assert sorted(back.edges) == sorted(graph.edges)
    weights = [
        network.edges[edge[0], edge[1], number]["weight"] for number, edge in enumerate(graph.edges)
    ]
    assert tuple(weights) == graph.weights
    assert tuple(own for _, own in network.nodes(data="self_weight")) == graph.self_weights


def test_networkx_weights_are_read_where_they_are_named() -> None:
    network = networkx.Graph()
    network.add_nodes_from([1, 0, 2])
    network.add_edge(2, 0, share=0.25)
    network.add_edge(0, 1, share=0.5)
    network.add_edge(1, 1, share=0.125)
    graph = Graph.from_networkx(network, weight="share")
    assert graph.edges == ((0, 1), (0, 2), (1, 0), (1, 1), (2, 0))
    assert graph.weights == (0.5, 0.25, 0.5, 0.125, 0.25)
    assert graph.self_weights == (0.25, 0.375, 0.75)
    assert Graph.from_networkx(network).weights is None


def test_the_order_in_which_networkx_was_filled_does_not_matter() -> None:
    edges = [(a, b) for a, b in pairwise(range(6))]
    forwards, backwards = networkx.DiGraph(edges), networkx.DiGraph(edges[::-1])
    assert Graph.from_networkx(forwards) == Graph.from_networkx(backwards)


graph: Any = Graph
UNSTABLE = Graph(2, [(0, 1)], [1.0], [0.5, 0.5])
MIXED = networkx.Graph([("a", "b")])
BARE = networkx.Graph([(0, 1)])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Graph(2, [(0, 1)], [0.5, 0.5]), "weights must be 1 finite numbers"),
        (lambda: Graph(2, [(0, 1)], [math.nan]), "weights must be 1 finite numbers"),
        (lambda: graph(2, [(0, 1)], ["half"]), "weights must be 1 finite numbers"),
        (lambda: Graph(2, [(0, 1)], [0.5], [1.0]), "self_weights must be 2 finite numbers"),
        (lambda: Graph(2, [(0, 1)], None, [1.0, 1.0]), "self_weights= need weights="),
        (lambda: Graph(2, [(0, 1), (0, 1)], [0.75, 0.5]), "at most 1, got 1.25 at rank 1"),
        (lambda: Graph(3, [(0, 1), (1, 0), (1, 2)]).metropolis(), "one 1->2 and no 2->1"),
        (lambda: Graph.hypercube(6), "size must be a power of two, got 6"),
        (lambda: Graph.star(3, centre=3), r"centre must be in 0..2, got 3"),
        (lambda: Graph.grid((2, 0)), "extent 1 must be at least 1"),
        (lambda: Graph.along(Ring(4), None, lambda n: Ring(n + 1)), "graph of 4 ranks"),
        (lambda: Graph.from_networkx(MIXED), "nodes must be the ranks 0, 1"),
        (lambda: Graph.from_networkx(networkx.Graph()), "nodes must be the ranks 0, 1"),
        (lambda: Graph.from_networkx(BARE, weight="w"), "every edge must have a 'w'"),
        (lambda: graph.from_networkx([(0, 1)]), "expected a networkx graph"),
        (UNSTABLE.spectral_gap, "must sum to 1"),
    ],
)
def test_what_makes_no_weights_is_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        make()
