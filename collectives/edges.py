"""Who sends what to whom over the edges of a topology, as data: no torch, no communication.

Each edge of a graph is a lane of its own, whose key is the edge's number: the same on both ends,
so the k-th edge to a peer meets its k-th edge from me, doubled edges and loops included. On a Ring
or Mesh the lanes are those of ``exchange`` on every axis: what goes to a left neighbour arrives
there from the right, on a ring of two as well, where both are one rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import TopologyError
from .plan import Lane, Plan
from .topology import Cartesian, Graph, Schedule, Topology

__all__ = ["EdgePlan", "graph_at", "plan_all_pairs", "plan_edges", "weight_sums"]


@dataclass(frozen=True)
class EdgePlan:
    """The edges that leave and arrive at one rank.

    Args:
        plan: Their lanes.
        leaving: For each edge that leaves, in order, the index of its lane.
        arriving: For each edge that arrives, in order, the index of its lane.
        own: What the rank keeps of its own in the mixing matrix.
        weights: What it takes from each edge that arrives.
    """

    plan: Plan
    leaving: tuple[int, ...]
    arriving: tuple[int, ...]
    own: float
    weights: tuple[float, ...]


def graph_at(operation: str, topology: Topology, step: int | None) -> Topology:
    """Return the topology of a step: of a schedule, one of its graphs.

    Raises:
        TopologyError: A schedule without a step, or a step that is not an int from 0 on.
    """
    if not isinstance(topology, Schedule):
        return topology
    if step is None:
        raise TopologyError(
            f"{operation}: over a Schedule step= is needed, the same on all ranks: it says which"
            f" edges of {topology!r} are meant"
        )
    return topology[step]


def plan_edges(topology: Topology, rank: int, op: str) -> EdgePlan:
    """Return the plan of a neighbourhood operation.

    Raises:
        TopologyError: The topology has no edges of its own: a schedule.
    """
    if isinstance(topology, Cartesian):
        return _plan_axes(topology, rank, op)
    return _plan_graph(topology.to_graph().weighted(), rank, op)


def plan_all_pairs(size: int, rank: int, op: str) -> Plan:
    """Return the plan in which each rank sends to every other one: lane k - 1 to rank + k."""
    hops = range(1, size)
    lanes = tuple(Lane(hop - 1, (rank + hop) % size, (rank - hop) % size) for hop in hops)
    return Plan(op, rank, size, lanes)


def weight_sums(topology: Topology) -> Sequence[float]:
    """Return, for each rank, the sum of what it takes and keeps."""
    graph = topology.to_graph().weighted()
    parts = [[own] for own in graph.self_weights or ()]
    for (_, destination), weight in zip(graph.edges, graph.weights or (), strict=True):
        parts[destination].append(weight)
    return [math.fsum(part) for part in parts]


def _plan_axes(mesh: Cartesian, rank: int, op: str) -> EdgePlan:
    lanes: list[Lane] = []
    weights: list[float] = []
    for axis in range(len(mesh.shape)):
        left, right = mesh.neighbours(rank, axis, 1)
        lanes += [Lane(2 * axis, left, right), Lane(2 * axis + 1, right, left)]
        weight = mesh.edge_weight(axis)
        weights += [0.0 if peer is None else weight for peer in (left, right)]
    leaving = tuple(range(len(lanes)))
    arriving = tuple(lane ^ 1 for lane in leaving)  # from the left comes what travels right
    plan = Plan(op, rank, mesh.size, tuple(lanes))
    return EdgePlan(plan, leaving, arriving, 1 - math.fsum(weights), tuple(weights))


def _plan_graph(graph: Graph, rank: int, op: str) -> EdgePlan:
    lanes: list[Lane] = []
    leaving: list[int] = []
    arriving: list[int] = []
    weights: list[float] = []
    assert graph.weights is not None
    assert graph.self_weights is not None
    for number, (source, destination) in enumerate(graph.edges):
        leaves, arrives = source == rank, destination == rank
        if leaves:
            leaving.append(len(lanes))
        if arrives:
            arriving.append(len(lanes))
            weights.append(graph.weights[number])
        if leaves or arrives:
            to, of = destination if leaves else None, source if arrives else None
            lanes.append(Lane(number, to, of))
    if not leaving:
        # It leads nowhere: what the rank gives is refused like anywhere else, and has a gradient.
        lanes.append(Lane(len(graph.edges), None, None))
    plan = Plan(op, rank, graph.size, tuple(lanes))
    own = graph.self_weights[rank]
    return EdgePlan(plan, tuple(leaving), tuple(arriving), own, tuple(weights))
