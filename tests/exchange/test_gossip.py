"""Gossip: what it does in one step, and how fast the ranks agree."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Graph, Mesh, Ring, Schedule
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation, simulate
from collectives.topology import Topology
from tests.support.worlds import SIZES, World


def values(rank: int, count: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def model_of(rank: int) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).double()
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(values(100 * rank + number, p.numel()).view(p.shape))
    return model


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# -- one step --------------------------------------------------------------------------------------


def stepped(adapter: Adapter, topology: Topology, step: int) -> Tensor:
    exchange = Exchange(topology, adapter)
    model = model_of(exchange.rank)
    exchange.gossip_(model.parameters(), step)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    return flat(model)


TOPOLOGIES: list[Topology] = [
    *(Ring(size) for size in SIZES),
    *(Graph.star(size) for size in SIZES),
    Ring(3, periodic=False),
    Mesh((3, 2), periodic=(False, True)),
    Mesh((1, 1, 2)),
    Graph(3, [(0, 1), (0, 1), (1, 1), (2, 0)], [0.25, 0.25, 0.125, 1.0]),
    Graph(2, ()),
    Schedule.one_peer_exponential(5),
    Schedule.random_matching(5, seed=0),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
def test_one_step_multiplies_by_the_mixing_matrix(world: World, topology: Topology) -> None:
    before = np.stack([flat(model_of(rank)).numpy() for rank in range(topology.size)])
    graph = topology[3] if isinstance(topology, Schedule) else topology
    after = world(stepped, topology.size, topology, 3)
    expected = graph.mixing_matrix() @ before
    np.testing.assert_allclose(np.stack([x.numpy() for x in after]), expected, atol=1e-13)


def of_dtypes(adapter: Adapter) -> tuple[list[Tensor], dict[str, float]]:
    exchange = Exchange(Graph.complete, adapter)
    tensors = [
        values(exchange.rank, 4, torch.float32).view(2, 2).t(),  # not contiguous
        values(exchange.rank, 3, torch.bfloat16),
        values(exchange.rank, 40_000, torch.float32),
        torch.complex(values(exchange.rank), values(exchange.rank)),
        torch.zeros(0),
    ]
    exchange.gossip_(tensors)
    return tensors, exchange.stats()


def test_each_edge_takes_one_message_for_each_dtype(world: World) -> None:
    size = 3
    short = torch.stack([values(rank) for rank in range(size)]).mean(0)
    long = torch.stack([values(rank, 40_000) for rank in range(size)]).mean(0)
    for tensors, stats in world(of_dtypes, size):
        assert stats["messages_sent"] == (size - 1) * 3
        assert tensors[1].dtype == torch.bfloat16
        torch.testing.assert_close(tensors[2], long.float())
        torch.testing.assert_close(tensors[3], torch.complex(short, short))


def saved_for_backward(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    weight = values(exchange.rank).requires_grad_()
    loss = (weight * weight).sum()
    exchange.gossip_([weight])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_knows_that_parameters_were_written_to(world: World) -> None:
    world(saved_for_backward, 2)


def other_shapes(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    exchange.gossip_([torch.ones(2, 3) if exchange.rank else torch.ones(3, 2)])


def test_ranks_with_other_shapes_of_as_many_elements_are_told() -> None:
    with pytest.raises(ExchangeMismatch, match=r"gossip_\(tensors=1, elements=6, shapes="):
        simulate(2, other_shapes)


# -- many steps ------------------------------------------------------------------------------------


def distances(adapter: Adapter, topology: Topology, steps: int) -> list[float]:
    exchange = Exchange(topology, adapter)
    params = [values(exchange.rank), values(exchange.rank + 50, 3)]
    found = [exchange.consensus_distance(params)]
    for step in range(steps):
        exchange.gossip_(params, step)
        found.append(exchange.consensus_distance(params))
    return found


def means(adapter: Adapter, topology: Topology, steps: int) -> Tensor:
    exchange = Exchange(topology, adapter)
    params = [values(exchange.rank)]
    for step in range(steps):
        exchange.gossip_(params, step)
    return params[0]


CONVERGING: list[Topology] = [
    Ring(8),
    Ring(9, periodic=False),
    Mesh((4, 3), periodic=(True, False)),
    Graph.exponential(12),
    Graph.star(8),
    Graph.hypercube(16),
    Graph.grid((3, 4)),
    Schedule.cycle([Graph.exponential(10), Ring(10)]),
]


@pytest.mark.parametrize("topology", CONVERGING, ids=repr)
def test_ranks_agree_at_the_rate_of_the_spectral_gap(topology: Topology) -> None:
    period = topology.period or 1 if isinstance(topology, Schedule) else 1
    steps = period * 12
    found = simulate(topology.size, lambda adapter: distances(adapter, topology, steps))
    assert all(mine == found[0] for mine in found)
    factor = 1 - topology.spectral_gap()
    periods = found[0][::period]
    # The matrices are symmetric, or circulant: no step does worse, and in the end each does so.
    for before, after in pairwise(periods):
        assert after <= before * factor * (1 + 1e-9) + 1e-14
    late = [after / before for before, after in pairwise(periods[8:])]
    if factor > 0.1:  # else rounding is reached before
        assert late[-1] == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("topology", CONVERGING, ids=repr)
def test_doubly_stochastic_weights_keep_the_mean(topology: Topology) -> None:
    assert topology.is_doubly_stochastic()
    size = topology.size
    mean = torch.stack([values(rank) for rank in range(size)]).mean(0)
    after = simulate(size, lambda adapter: means(adapter, topology, 25))
    assert (torch.stack(after).mean(0) - mean).abs().max() <= 1e-12


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_one_peer_exponential_reaches_the_average_after_log2_steps(size: int) -> None:
    schedule = Schedule.one_peer_exponential(size)
    steps = int(math.log2(size))
    (found, *_) = simulate(size, lambda adapter: distances(adapter, schedule, steps))
    assert all(distance > 1e-3 for distance in found[:-1])
    assert found[-1] <= 1e-14


def test_averaging_axis_by_axis_gives_all_ranks_the_mean(world: World) -> None:
    schedule = Schedule.axis_by_axis(Mesh((2, 3), axes=("host", "card")))
    mean = torch.stack([values(rank) for rank in range(6)]).mean(0)
    for mine in world(means, 6, schedule, 2):
        assert torch.allclose(mine, mean, atol=1e-14)


def test_a_thousand_random_matchings_keep_no_more_than_some_routes() -> None:
    def program(adapter: Adapter) -> int:
        exchange = Exchange(Schedule.random_matching(2, seed=0), adapter)
        x = values(exchange.rank)
        for step in range(1000):
            exchange.gossip_([x], step)
        return len(exchange._bound().routes)

    assert max(simulate(2, program)) <= 256


# -- consensus distance ----------------------------------------------------------------------------


def distance_of(adapter: Adapter, *, same: bool) -> float:
    exchange = Exchange(Ring, adapter)
    rank = 0 if same else exchange.rank
    params = [
        values(rank, 7, torch.float32),
        values(rank + 10, 2),
        torch.complex(values(rank), values(rank + 20)),
    ]
    return exchange.consensus_distance(params)


def distance_apart(adapter: Adapter) -> float:
    return distance_of(adapter, same=False)


def distance_together(adapter: Adapter) -> float:
    return distance_of(adapter, same=True)


@pytest.mark.parametrize("size", SIZES)
def test_the_distance_is_that_of_one_process_and_alike_on_all_ranks(
    world: World, size: int
) -> None:
    rows = torch.stack(
        [
            torch.cat([values(r, 7).float().double(), values(r + 10, 2), values(r), values(r + 20)])
            for r in range(size)
        ]
    )
    expected = (rows - rows.mean(0)).square().sum(1).mean().sqrt().item()
    found = world(distance_apart, size)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(expected, rel=1e-14, abs=1e-300)


@pytest.mark.parametrize("size", SIZES)
def test_the_distance_of_ranks_that_have_the_same_is_exactly_zero(size: int) -> None:
    assert set(simulate(size, distance_together)) == {0.0}


def test_1024_ranks_average_forward_and_backward_with_ten_messages_each_way() -> None:
    size = 1024
    matrix = Graph.exponential(size).mixing_matrix()

    def program(adapter: Adapter) -> tuple[float, float, float]:
        exchange = Exchange(Graph.exponential, adapter)
        x = torch.tensor(float(exchange.rank), dtype=torch.float64, requires_grad=True)
        y = exchange.neighbor_allreduce(x)
        exchange.join(y * exchange.rank).backward()
        assert x.grad is not None
        return y.item(), x.grad.item(), exchange.stats()["messages_sent"]

    results = Simulation(size).run(program)
    np.testing.assert_allclose([y for y, _, _ in results], matrix @ np.arange(size), rtol=1e-12)
    np.testing.assert_allclose([g for _, g, _ in results], matrix.T @ np.arange(size), rtol=1e-12)
    assert {messages for _, _, messages in results} == {20}
