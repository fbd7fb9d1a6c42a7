"""ring_pass: whose blocks come, in which order, with which gradient."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Ring
from collectives.circuit import find_track
from collectives.plan import Plan, check_plans
from collectives.routes import Shapes
from collectives.testing import check_adjoint
from tests.support.worlds import SIZES, World

from .cases import CASES, Case, block, sources


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("kind", ["relay", "direct"])
def test_the_hops_of_all_ranks_fit_together(case: Case, kind: str) -> None:
    topology, axis = case
    tracks = [find_track(topology, rank, axis, "test") for rank in range(topology.size)]
    for hop in range(1, tracks[0].extent):
        for some in (tracks, [x.closed() for x in tracks], [x.mirrored() for x in tracks]):
            lanes = [x.relay(hop) if kind == "relay" else x.direct(hop) for x in some]
            check_plans(
                [Plan("hop", rank, topology.size, (lane,)) for rank, lane in enumerate(lanes)]
            )


def passed(adapter: Adapter, case: Case, prefetch: int) -> list[tuple[int, Tensor]]:
    topology, axis = case
    exchange = Exchange(topology, adapter)
    mine = block(exchange.rank)
    visited = list(exchange.ring_pass(mine, axis=axis, prefetch=prefetch))
    assert visited[0][1] is mine
    assert len({x.data_ptr() for _, x in visited}) == len(visited)
    return visited


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_every_block_comes_once_and_nearest_first(world: World, case: Case, prefetch: int) -> None:
    for rank, visited in enumerate(world(passed, case[0].size, case, prefetch)):
        assert [source for source, _ in visited] == sources(case, rank)
        for source, tensor in visited:
            torch.testing.assert_close(tensor, block(source), rtol=0, atol=0)


def adjoint(adapter: Adapter, case: Case, prefetch: int) -> float:
    topology, axis = case
    exchange = Exchange(topology, adapter)

    def blocks(tree: tuple[Tensor, Tensor]) -> list[object]:
        return [x for _, x in exchange.ring_pass(tree, axis=axis, prefetch=prefetch)]

    return check_adjoint(exchange, blocks, (block(exchange.rank), block(exchange.rank + 7)[0]))


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("prefetch", [1, 2])
def test_backward_is_the_adjoint(world: World, case: Case, prefetch: int) -> None:
    assert max(world(adjoint, case[0].size, case, prefetch)) <= 1e-12


class Pair(NamedTuple):
    vectors: Tensor
    labels: Tensor


def structured(adapter: Adapter) -> list[tuple[int, int, bool]]:
    exchange = Exchange(Ring, adapter)
    mine = Pair(block(exchange.rank).requires_grad_(), torch.tensor(exchange.rank))
    visited = list(exchange.ring_pass(mine))
    exchange.join(torch.stack([pair.vectors.sum() for _, pair in visited]).sum()).backward()
    assert mine.vectors.grad is not None
    assert mine.vectors.grad.eq(exchange.size).all()
    return [(s, int(pair.labels), isinstance(pair, Pair)) for s, pair in visited]


@pytest.mark.parametrize("size", SIZES)
def test_a_block_is_any_tree(world: World, size: int) -> None:
    for visited in world(structured, size):
        assert [label for _, label, _ in visited] == [source for source, _, _ in visited]
        assert all(kind for _, _, kind in visited)


ROWS = (2, 2, 3, 1, 3)  # of each rank: what one sends does not tell what it gets


def uneven(adapter: Adapter, prefetch: int, shapes: Shapes) -> list[list[int]]:
    exchange = Exchange(Ring, adapter)
    mine = torch.ones(ROWS[exchange.rank], requires_grad=True)
    lengths = []
    for _ in range(2):
        blocks = [x for _, x in exchange.ring_pass(mine, shapes=shapes, prefetch=prefetch)]
        exchange.join(torch.stack([x.sum() for x in blocks]).sum()).backward()
        lengths += [x.numel() for x in blocks]
    assert mine.grad is not None
    return [lengths, mine.grad.tolist()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("prefetch", [1, 2])
@pytest.mark.parametrize("shapes", ["discover", "once"])
def test_blocks_of_different_shapes_are_discovered(
    world: World, size: int, prefetch: int, shapes: Shapes
) -> None:
    for rank, (lengths, grad) in enumerate(world(uneven, size, prefetch, shapes)):
        assert lengths == [ROWS[(rank - hop) % size] for hop in range(size)] * 2
        assert grad == [2 * size] * ROWS[rank]
