"""Operations over edges: values against one process that has all ranks, and their adjoints."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Graph, Mesh, Received, Ring, Schedule
from collectives.errors import ExchangeMismatch
from collectives.testing import check_adjoint, simulate
from collectives.topology import Cartesian, Topology
from tests.support.worlds import SIZES, World

MESHES: list[Cartesian] = [
    *(Ring(size, periodic=periodic) for size in SIZES for periodic in (True, False)),
    Mesh((2, 2), axes=("y", "x")),
    Mesh((1, 2), axes=("y", "x"), periodic=True),
    Mesh((3, 2), axes=("y", "x"), periodic=(False, True)),
    Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, False)),
]


def tangled(size: int) -> Graph:
    """Doubled edges, loops, and (by chance) ranks that none leaves or none reaches."""
    rng = random.Random(size)
    edges = [(rng.randrange(size), rng.randrange(size)) for _ in range(2 * size)]
    edges += edges[: size // 2]
    weights = [rng.uniform(-1, 1) for _ in edges]
    return Graph(size, edges, weights, [rng.uniform(-1, 1) for _ in range(size)])


GRAPHS = [
    *(tangled(size) for size in SIZES),
    *(Graph.exponential(size) for size in SIZES),
    *(Graph.star(size) for size in SIZES),
    Graph(3, ()),
    Graph(3, [(0, 1)]),
]


def named(topology: Topology) -> str:
    text = repr(topology)
    return text if len(text) < 60 else f"tangled-{topology.size}"


def of_rank(rank: int, edge: int = 0, size: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + edge)
    return torch.randn(size, generator=generator, dtype=torch.float64)


# -- values ----------------------------------------------------------------------------------------


def gathered(adapter: Adapter, topology: Topology) -> list[list[Tensor]]:
    exchange = Exchange(topology, adapter)
    tree = {"x": of_rank(exchange.rank), "n": torch.tensor([exchange.rank])}
    trees = exchange.neighbor_allgather(tree)
    assert all(t["n"].dtype == torch.int64 for t in trees)
    return [[t["x"], t["n"]] for t in trees]


@pytest.mark.parametrize("graph", GRAPHS, ids=named)
def test_allgather_gives_what_stands_at_the_source_of_each_edge(world: World, graph: Graph) -> None:
    for rank, trees in enumerate(world(gathered, graph.size, graph)):
        assert [int(n) for _, n in trees] == list(graph.sources(rank))
        for (x, _), source in zip(trees, graph.sources(rank), strict=True):
            assert torch.equal(x, of_rank(source))


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_on_a_mesh_results_stand_left_and_right_axis_by_axis(world: World, mesh: Cartesian) -> None:
    zeros = torch.zeros(3, dtype=torch.float64)
    for rank, trees in enumerate(world(gathered, mesh.size, mesh)):
        pairs = [mesh.neighbours(rank, axis, 1) for axis in range(len(mesh.shape))]
        expected = [peer for pair in pairs for peer in pair]
        assert len(trees) == len(expected)
        for (x, _), peer in zip(trees, expected, strict=True):
            assert torch.equal(x, zeros if peer is None else of_rank(peer))


def dealt(adapter: Adapter, graph: Graph) -> list[Tensor]:
    exchange = Exchange(graph, adapter)
    rank = exchange.rank
    mine = [n for n, (source, _) in enumerate(graph.edges) if source == rank]
    like = [of_rank(0) for _ in graph.sources(rank)]
    return list(exchange.neighbor_alltoall([of_rank(rank, n) for n in mine], like=like))


@pytest.mark.parametrize("graph", GRAPHS, ids=named)
def test_alltoall_delivers_to_each_edge_what_was_given_for_it(world: World, graph: Graph) -> None:
    for rank, trees in enumerate(world(dealt, graph.size, graph)):
        arriving = [(n, s) for n, (s, d) in enumerate(graph.edges) if d == rank]
        assert len(trees) == len(arriving)
        for x, (number, source) in zip(trees, arriving, strict=True):
            assert torch.equal(x, of_rank(source, number))


def both_forms(adapter: Adapter, mesh: Cartesian) -> None:
    exchange = Exchange(mesh, adapter)
    trees = [of_rank(exchange.rank, n, 2 + n) for n in range(2 * len(mesh.axes))]
    arrived = exchange.neighbor_alltoall(trees)
    for index, axis in enumerate(mesh.axes):
        to_left, to_right = trees[2 * index : 2 * index + 2]
        sides: Received[Tensor, Tensor] = exchange.exchange(
            to_left=to_left, to_right=to_right, axis=axis
        )
        assert torch.equal(sides.from_left, arrived[2 * index])
        assert torch.equal(sides.from_right, arrived[2 * index + 1])


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_alltoall_on_a_mesh_is_exchange_on_every_axis(world: World, mesh: Cartesian) -> None:
    world(both_forms, mesh.size, mesh)


def reduced(adapter: Adapter, topology: Topology, dtype: torch.dtype) -> Tensor:
    exchange = Exchange(topology, adapter)
    mine = of_rank(exchange.rank)
    first, second = exchange.neighbor_allreduce((mine.to(dtype), mine[:2].to(dtype)))
    assert torch.equal(first[:2], second)
    return first.detach()


@pytest.mark.parametrize("topology", [*GRAPHS, *MESHES], ids=named)
def test_allreduce_multiplies_by_the_mixing_matrix(world: World, topology: Topology) -> None:
    x = np.stack([of_rank(rank).numpy() for rank in range(topology.size)])
    expected = topology.mixing_matrix() @ x
    results = world(reduced, topology.size, topology, torch.float64)
    np.testing.assert_allclose(np.stack([r.numpy() for r in results]), expected, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.complex64])
def test_allreduce_keeps_the_dtype(world: World, dtype: torch.dtype) -> None:
    assert {y.dtype for y in world(reduced, 3, Graph.complete(3), dtype)} == {dtype}


def weighed(adapter: Adapter) -> Tensor:
    exchange = Exchange(Ring, adapter)
    mine = torch.tensor(10.0**exchange.rank)
    return exchange.neighbor_allreduce(mine, weights=[0, 2, 3 + exchange.rank])


def test_weights_are_taken_of_my_own_first_and_then_edge_by_edge(world: World) -> None:
    # rank r takes twice its left neighbour and 3 + r times its right one
    assert [y.item() for y in world(weighed, 3)] == [230.0, 402.0, 25.0]


def stepped(adapter: Adapter, schedule: Schedule) -> list[int]:
    exchange = Exchange(schedule, adapter)
    mine = torch.tensor(exchange.rank)
    return [int(exchange.neighbor_allgather(mine, step=step)[0]) for step in (0, 1, 2, 5)]


def test_over_a_schedule_the_edges_are_those_of_the_step(world: World) -> None:
    schedule = Schedule.one_peer_exponential(4)
    for rank, sources in enumerate(world(stepped, 4, schedule)):
        assert sources == [schedule[step].sources(rank)[0] for step in (0, 1, 2, 5)]


# -- shapes and buffers ----------------------------------------------------------------------------


def uneven(adapter: Adapter, topology: Topology) -> list[Tensor]:
    exchange = Exchange(topology, adapter)
    mine = of_rank(exchange.rank, size=exchange.rank + 1)
    first, again = (exchange.neighbor_allgather([mine], shapes="once") for _ in range(2))
    assert all(torch.equal(x, y) for (x,), (y,) in zip(first, again, strict=True))
    return [x for (x,) in exchange.neighbor_allgather([mine], shapes="discover")]


@pytest.mark.parametrize("graph", [*GRAPHS, Graph.complete(4)], ids=named)
def test_shapes_are_asked_of_the_sources(world: World, graph: Graph) -> None:
    for rank, xs in enumerate(world(uneven, graph.size, graph)):
        assert len(xs) == len(graph.sources(rank))
        for x, source in zip(xs, graph.sources(rank), strict=True):
            assert torch.equal(x, of_rank(source, size=source + 1))


def into_buffers(adapter: Adapter, graph: Graph) -> None:
    exchange = Exchange(graph, adapter)
    sources = graph.sources(exchange.rank)
    like = [torch.empty(source + 1, dtype=torch.float64) for source in sources]
    out = [torch.full_like(x, -1) for x in like]
    mine = of_rank(exchange.rank, size=exchange.rank + 1)
    results = exchange.neighbor_allgather(mine, like=like, out=out)
    for result, buffer, source in zip(results, out, sources, strict=True):
        assert torch.equal(buffer, of_rank(source, size=source + 1))
        assert result.data_ptr() == buffer.data_ptr()


@pytest.mark.parametrize("graph", [tangled(5), Graph.star(4)], ids=named)
def test_what_arrives_may_have_given_shapes_and_buffers(world: World, graph: Graph) -> None:
    world(into_buffers, graph.size, graph)


def aliases(adapter: Adapter) -> bool:
    exchange = Exchange(Graph(1, [(0, 0), (0, 0)]), adapter)
    mine = torch.ones(3)
    first, second = exchange.neighbor_allgather(mine)
    mine.zero_()
    mixed = exchange.neighbor_allreduce(mine, weights=[1, 0, 0])
    return mixed.data_ptr() != mine.data_ptr() and bool((first == 1).all() & (second == 1).all())


def test_results_are_never_views_of_the_input(world: World) -> None:
    assert world(aliases, 1) == [True]


# -- gradients -------------------------------------------------------------------------------------


def operations(exchange: Exchange) -> list[Callable[..., object]]:
    topology = exchange.topology
    leaving = 2 * len(topology.axes) if isinstance(topology, Cartesian) else 0
    if isinstance(topology, Graph):
        leaving = len(topology.destinations(exchange.rank))
    like = None
    if isinstance(topology, Graph):
        like = [torch.empty(4, dtype=torch.float64) for _ in topology.sources(exchange.rank)]
    return [
        lambda x, y: exchange.neighbor_allgather((x, y.t())),
        lambda x, y: exchange.neighbor_allgather([x[: 1 + exchange.rank]], shapes="discover"),
        lambda x, y: exchange.neighbor_allreduce({"x": x, "y": y.t()}),
        lambda x, y: exchange.neighbor_alltoall(
            [x * (n + 1) + y.sum() for n in range(leaving)], like=like
        ),
    ]


def largest_error(adapter: Adapter, topology: Topology) -> float:
    exchange = Exchange(topology, adapter)
    x, y = of_rank(exchange.rank, size=4), of_rank(exchange.rank, 1, 6).view(2, 3)
    return max(check_adjoint(exchange, op, x, y) for op in operations(exchange))


@pytest.mark.parametrize("topology", [*GRAPHS, *MESHES], ids=named)
def test_every_backward_over_edges_is_the_adjoint(world: World, topology: Topology) -> None:
    assert max(world(largest_error, topology.size, topology)) <= 1e-12


def gradient(adapter: Adapter, graph: Graph) -> Tensor | None:
    exchange = Exchange(graph, adapter)
    x = of_rank(exchange.rank).requires_grad_()
    y = exchange.neighbor_allreduce(x)
    # A loss that differs from rank to rank; rank 1 has none.
    loss = (y * (1 + exchange.rank)).sum() if exchange.rank != 1 else torch.zeros(())
    exchange.join(loss).backward()
    return x.grad


@pytest.mark.parametrize("graph", GRAPHS, ids=named)
def test_the_gradient_of_the_sum_of_losses_is_the_transposed_matrix(
    world: World, graph: Graph
) -> None:
    cotangents = [0.0 if rank == 1 else 1.0 + rank for rank in range(graph.size)]
    expected = graph.mixing_matrix().T @ np.array(cotangents)
    for rank, grad in enumerate(world(gradient, graph.size, graph)):
        assert grad is not None
        np.testing.assert_allclose(grad.numpy(), expected[rank], atol=1e-13)


def nowhere(adapter: Adapter) -> Tensor | None:
    exchange = Exchange(Graph(2, [(0, 1)]), adapter)
    x = torch.ones(2, requires_grad=True)
    total = sum(exchange.neighbor_allgather(x), torch.zeros(2))
    exchange.join(total.sum()).backward()
    return x.grad


def test_a_rank_that_no_edge_leaves_has_a_gradient_of_zeros(world: World) -> None:
    first, second = world(nowhere, 2)
    assert first is not None
    assert first.tolist() == [1, 1]
    assert second is not None
    assert second.tolist() == [0, 0]


# -- mismatches ------------------------------------------------------------------------------------


def out_of_step(adapter: Adapter) -> None:
    exchange = Exchange(Schedule.one_peer_exponential, adapter)
    exchange.neighbor_allgather(torch.ones(1), step=int(exchange.rank == 1))


def test_a_rank_at_another_step_is_told() -> None:
    with pytest.raises(ExchangeMismatch, match=r"(?s)step=0.*step=1|step=1.*step=0"):
        simulate(4, out_of_step)
