"""Operations over edges under every verify=, and differentiated twice."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from collectives import Adapter, Exchange, Graph, Schedule
from collectives.errors import ExchangeMismatch
from collectives.testing import check_adjoint, simulate
from tests.support.worlds import World

DOUBLED = Graph(3, [(0, 1), (1, 2), (0, 1), (1, 0), (2, 2), (0, 2)])
Verify = Literal["auto", "always", "off"]


def everything(adapter: Adapter, verify: Verify) -> tuple[float, list[float]]:
    exchange = Exchange(DOUBLED, adapter, verify=verify)
    rank = exchange.rank
    x = torch.arange(4, dtype=torch.float64) + 10 * rank
    error = check_adjoint(exchange, exchange.neighbor_allreduce, x)
    mine = [torch.tensor(10.0 * rank + k) for k in range(len(DOUBLED.destinations(rank)))]
    with torch.no_grad():
        uneven = exchange.neighbor_allgather(torch.full((rank,), 1.0), shapes="discover")
        assert [len(u) for u in uneven] == list(DOUBLED.sources(rank))
        exchange.gossip_([x])
        assert exchange.consensus_distance([x]) > 0
        return error, [y.item() for y in exchange.neighbor_alltoall(mine)]


@pytest.mark.parametrize("verify", ["auto", "always", "off"])
def test_doubled_edges_and_loops_are_right_under_every_verify(world: World, verify: Verify) -> None:
    errors, arrived = zip(*world(everything, 3, verify), strict=True)
    assert max(errors) <= 1e-12
    assert arrived == ([11.0], [0.0, 1.0], [10.0, 20.0, 2.0])


def twice(adapter: Adapter) -> tuple[float, float]:
    exchange = Exchange(Graph.complete, adapter)
    x = torch.tensor(exchange.rank + 1.0, dtype=torch.float64, requires_grad=True)
    y = exchange.neighbor_allreduce(x**3)
    (first,) = torch.autograd.grad(exchange.join(y), x, create_graph=True)
    (second,) = torch.autograd.grad(exchange.join(first), x)
    return first.item(), second.item()


def test_a_sum_over_edges_is_differentiated_twice(world: World) -> None:
    # The mean of cubes, summed over all ranks, is the sum of cubes.
    for rank, (first, second) in enumerate(world(twice, 3)):
        assert first == pytest.approx(3 * (rank + 1) ** 2)
        assert second == pytest.approx(6 * (rank + 1))


def other_weights(adapter: Adapter, graphs: list[Graph]) -> None:
    exchange = Exchange(graphs[adapter.context().rank], adapter)
    exchange.gossip_([torch.ones(2)])


def test_ranks_with_other_weights_are_told() -> None:
    edges = [(0, 1), (1, 0)]
    graphs = [Graph(2, edges, [0.5, 0.5]), Graph(2, edges, [0.5, 0.25])]
    with pytest.raises(ExchangeMismatch, match="topology"):
        simulate(2, other_weights, graphs)


def test_ranks_whose_large_graphs_differ_at_the_end_are_told() -> None:
    many = [(0, 1), (1, 0)] * 600
    graphs = [Graph(2, [*many, (0, 0)]), Graph(2, [*many, (1, 1)])]
    with pytest.raises(ExchangeMismatch, match=r"topology.*sha256"):
        simulate(2, other_weights, graphs)


def test_a_schedule_may_be_made_by_the_number_of_ranks() -> None:
    def program(adapter: Adapter) -> str:
        exchange = Exchange(lambda n: Schedule.random_matching(n, seed=1), adapter)
        return repr(exchange.topology)

    assert set(simulate(3, program)) == {"Schedule.random_matching(3, seed=1)"}
