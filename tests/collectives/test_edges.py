"""Plans over edges: those of all ranks fit together, whatever the graph."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.edges import EdgePlan, graph_at, plan_all_pairs, plan_edges, weight_sums
from collectives.errors import TopologyError
from collectives.plan import LEFTWARD, RIGHTWARD, check_plans, plan_exchange
from collectives.topology import Cartesian, Graph, Mesh, Ring, Schedule, Topology
from tests.collectives.test_graphs import weighted
from tests.collectives.test_topology import graphs, grids, law


def plans_of(topology: Topology) -> list[EdgePlan]:
    return [plan_edges(topology, rank, "test()") for rank in range(topology.size)]


@law
@given(st.one_of(graphs(), grids))
def test_the_plans_of_all_ranks_fit_together_both_ways(topology: Topology) -> None:
    plans = [edges.plan for edges in plans_of(topology)]
    check_plans(plans)
    check_plans([plan.reverse() for plan in plans])


@law
@given(graphs())
def test_every_edge_of_a_graph_is_a_lane_of_its_own_in_the_order_of_the_edges(graph: Graph) -> None:
    for rank, edges in enumerate(plans_of(graph)):
        lanes = edges.plan.lanes
        assert [lane.key for lane in lanes] == sorted({lane.key for lane in lanes})
        assert tuple(lanes[i].destination for i in edges.leaving) == graph.destinations(rank)
        assert tuple(lanes[i].source for i in edges.arriving) == graph.sources(rank)
        numbers = [lanes[i].key for i in edges.leaving]
        assert numbers == [n for n, (source, _) in enumerate(graph.edges) if source == rank]


@law
@given(graphs())
def test_the_kth_edge_to_a_peer_meets_its_kth_edge_from_me(graph: Graph) -> None:
    plans = plans_of(graph)
    on_the_way: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for rank, edges in enumerate(plans):
        for lane in edges.leaving:
            to = edges.plan.lanes[lane]
            assert to.destination is not None
            on_the_way[rank, to.destination].append(to.key)
    for rank, edges in enumerate(plans):
        for lane in edges.arriving:
            of = edges.plan.lanes[lane]
            assert of.source is not None
            assert on_the_way[of.source, rank].popleft() == of.key
    assert not any(on_the_way.values())


@law
@given(st.one_of(weighted(), grids))
def test_the_weights_of_a_plan_are_the_row_of_the_mixing_matrix(topology: Topology) -> None:
    matrix, sums = topology.mixing_matrix(), weight_sums(topology)
    for rank, edges in enumerate(plans_of(topology)):
        row = [0.0] * topology.size
        row[rank] += edges.own
        for lane, weight in zip(edges.arriving, edges.weights, strict=True):
            source = edges.plan.lanes[lane].source
            if source is None:
                assert weight == 0
            else:
                row[source] += weight
        assert row == pytest.approx(matrix[rank], abs=1e-12)
        assert sums[rank] == pytest.approx(sum(row), abs=1e-12)


@law
@given(grids)
def test_on_a_mesh_the_lanes_are_those_of_exchange_axis_by_axis(grid: Cartesian) -> None:
    for rank, edges in enumerate(plans_of(grid)):
        for axis in range(len(grid.shape)):
            expected = plan_exchange(grid, rank, axis).lanes
            for way in (LEFTWARD, RIGHTWARD):
                lane = edges.plan.lanes[edges.leaving[2 * axis + way]]
                assert (lane.destination, lane.source) == (
                    expected[way].destination,
                    expected[way].source,
                )
                assert edges.plan.lanes[edges.arriving[2 * axis + way]].source == (
                    expected[1 - way].source
                )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_pairs_reach_every_other_rank_once(size: int) -> None:
    plans = [plan_all_pairs(size, rank, "test()") for rank in range(size)]
    check_plans(plans)
    for rank, plan in enumerate(plans):
        others = [peer for peer in range(size) if peer != rank]
        assert sorted(lane.destination or 0 for lane in plan.lanes) == others
        assert sorted(lane.source or 0 for lane in plan.lanes) == others


def test_a_schedule_has_edges_at_a_step_only() -> None:
    schedule = Schedule.one_peer_exponential(4)
    assert graph_at("test", schedule, 1) == schedule[1]
    assert graph_at("test", Mesh((2, 2)), None) == Mesh((2, 2))
    assert graph_at("test", Ring(2), 3) == Ring(2)
    with pytest.raises(TopologyError, match="over a Schedule step= is needed"):
        graph_at("test", schedule, None)


def test_the_exponential_graph_of_1024_ranks_is_planned_and_checked_in_seconds() -> None:
    graph = Graph.exponential(1024)
    check_plans(edges.plan for edges in plans_of(graph))
