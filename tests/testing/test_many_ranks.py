"""1,024 ranks in one process: plans fit, values, gradients and counters are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch

from collectives import Adapter, Exchange, Graph, Mesh, Ring
from collectives.edges import plan_edges
from collectives.plan import Plan, check_plans, plan_exchange, plan_shift
from collectives.testing import Simulation
from collectives.topology import Topology

MANY = 1024
BYTES = 2 * 8  # two float64


class Seen(NamedTuple):
    """What a rank received, added up; its gradient; and what it has sent."""

    value: float
    grad: float
    messages: int
    bytes: int


def seen(exchange: Exchange, operation: Callable[[torch.Tensor], torch.Tensor]) -> Seen:
    """Send the own number; the loss of rank r is (r + 1) times the sum of what arrives."""
    x = torch.full((2,), float(exchange.rank), dtype=torch.float64, requires_grad=True)
    received = operation(x)
    exchange.join((exchange.rank + 1) * received.sum()).backward()
    exchange.check_backward()
    assert x.grad is not None
    stats = exchange.stats()
    value, grad = received.detach().unique().item(), x.grad.unique().item()
    return Seen(value, grad, int(stats["messages_sent"]), int(stats["bytes_sent"]))


def on_ring(adapter: Adapter) -> Seen:
    exchange = Exchange(Ring, adapter)
    return seen(exchange, exchange.shift)


def on_mesh(adapter: Adapter) -> Seen:
    exchange = Exchange(Mesh((32, 32), axes=("y", "x"), periodic=(False, True)), adapter)

    def from_all_sides(x: torch.Tensor) -> torch.Tensor:
        rows = exchange.exchange(to_left=x, to_right=x, axis="y")
        columns = exchange.exchange(to_left=x, to_right=x, axis="x")
        return rows.from_left + rows.from_right + columns.from_left + columns.from_right

    return seen(exchange, from_all_sides)


def on_graph(adapter: Adapter) -> Seen:
    exchange = Exchange(Graph.exponential, adapter)
    return seen(exchange, lambda x: torch.stack(exchange.neighbor_allgather(x)).sum(0))


def mesh_edges() -> Iterator[tuple[int, int]]:
    for rank in range(MANY):
        row, column = divmod(rank, 32)
        yield rank, 32 * row + (column + 1) % 32
        yield rank, 32 * row + (column - 1) % 32
        if row < 31:
            yield rank, rank + 32
            yield rank + 32, rank


def exponential_edges() -> Iterator[tuple[int, int]]:
    for rank in range(MANY):
        for power in range(10):
            yield rank, (rank + 2**power) % MANY


class Case(NamedTuple):
    topology: Topology
    program: Callable[[Adapter], Seen]
    plans: Callable[[Topology, int], list[Plan]]
    edges: list[tuple[int, int]]


def _mesh_plans(mesh: Topology, rank: int) -> list[Plan]:
    assert isinstance(mesh, Mesh)
    return [plan_exchange(mesh, rank, axis) for axis in (0, 1)]


def _ring_plans(ring: Topology, rank: int) -> list[Plan]:
    assert isinstance(ring, Ring)
    return [plan_shift(ring, rank, 0, 1)]


CASES = {
    "ring": Case(Ring(MANY), on_ring, _ring_plans, [(r, (r + 1) % MANY) for r in range(MANY)]),
    "mesh 32 x 32": Case(
        Mesh((32, 32), periodic=(False, True)), on_mesh, _mesh_plans, list(mesh_edges())
    ),
    "exponential": Case(
        Graph.exponential(MANY),
        on_graph,
        lambda graph, rank: [plan_edges(graph, rank, "gather").plan],
        list(exponential_edges()),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plans_of_1024_ranks_fit(name: str) -> None:
    topology, _, plans_of, _ = CASES[name]
    for plans in zip(*(plans_of(topology, rank) for rank in range(MANY)), strict=True):
        check_plans(plans)
        check_plans(plan.reverse() for plan in plans)


@pytest.mark.parametrize("name", CASES)
def test_1024_ranks_run_forward_and_backward(name: str) -> None:
    """Against the list of edges, written down without any topology of the library."""
    _, program, _, edges = CASES[name]
    simulation = Simulation(MANY)
    results = simulation.run(program)
    values, grads = [0.0] * MANY, [0.0] * MANY
    leaving, arriving = Counter(a for a, _ in edges), Counter(b for _, b in edges)
    for source, destination in edges:
        values[destination] += source
        grads[source] += destination + 1
    for rank, result in enumerate(results):
        count = leaving[rank] + arriving[rank]  # forward, and backward against the edges
        assert result == Seen(values[rank], grads[rank], count, count * BYTES)
    both_ways = Counter(edges) + Counter((b, a) for a, b in edges)
    assert {pair: traffic.messages for pair, traffic in simulation.traffic.items()} == both_ways
    assert all(t.bytes == t.messages * BYTES for t in simulation.traffic.values())
