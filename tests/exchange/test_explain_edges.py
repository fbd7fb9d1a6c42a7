"""What explain says of operations over edges."""

from __future__ import annotations

import pytest

from collectives import Adapter, Exchange, Graph, Mesh, Schedule
from collectives.errors import TopologyError
from collectives.testing import simulate
from collectives.topology import Topology


def explained(topology: Topology, step: int | None = None) -> str:
    def program(adapter: Adapter) -> str:
        return Exchange(topology, adapter).explain("neighbor_alltoall", step=step)

    texts = simulate(topology.size, program)
    assert len(set(texts)) == 1  # nobody is bound yet, so nobody is marked
    return texts[0]


def test_a_graph_is_explained_edge_by_edge_without_any_fill() -> None:
    assert explained(Graph(3, [(0, 1), (0, 1), (1, 1)])) == (
        "neighbor_alltoall() on 3 ranks\n"
        "  rank 0: sends edge 0 to 1; sends edge 1 to 1\n"
        "  rank 1: keeps edge 2; gets edge 0 of 0; gets edge 1 of 0\n"
        "  rank 2: nothing"
    )


def test_a_mesh_is_explained_side_by_side_with_its_fills() -> None:
    text = explained(Mesh((2,), axes=("x",)))
    assert "rank 0: sends to_right (x) to 1; gets to_left (x) of 1; gets the fill for" in text
    assert "rank 1: sends to_left (x) to 0; gets to_right (x) of 0; gets the fill for" in text


def test_a_schedule_is_explained_at_a_step() -> None:
    schedule = Schedule.one_peer_exponential(4)
    assert "rank 0: sends edge 0 to 2" in explained(schedule, step=1)
    with pytest.raises(TopologyError, match="step= is needed"):
        explained(schedule)


def test_this_rank_is_marked_once_it_is_known() -> None:
    def program(adapter: Adapter) -> str:
        exchange = Exchange(Graph.complete, adapter)
        assert exchange.size == 2
        return exchange.explain("gossip_")

    assert [text.splitlines()[rank + 1][0] for rank, text in enumerate(simulate(2, program))] == [
        "*",
        "*",
    ]
