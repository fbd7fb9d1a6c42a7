"""What operations over edges and gossip refuse before anything is posted, on one rank too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from collectives import Adapter, Exchange, Graph, Ring, Schedule
from collectives.errors import ArgumentError, TopologyError
from collectives.testing import simulate
from collectives.topology import Topology

X = torch.ones(2)
LONE = Graph(2, [(0, 1), (0, 1)])  # rank 0 gets nothing, rank 1 sends nothing
LEAKY = Graph(2, [(0, 1), (1, 0)], [0.5, 0.5], [0.5, 0.25])
with torch.inference_mode():
    INFERENCE = torch.ones(2)
Use = Callable[[Any], object]


def refused(adapter: Adapter, topology: Any, use: Use, error: type[Exception], text: str) -> bool:
    exchange = Exchange(topology, adapter)
    with pytest.raises(error, match=text):
        use(exchange)
    exchange.neighbor_allgather(X, step=0)  # nothing was posted: the next one works
    return True


def on_all_ranks(topology: Any, use: Use, error: type[Exception], text: str) -> None:
    sizes = [topology.size] if isinstance(topology, Topology) else [1, 2, 3]
    for size in sizes:
        results = simulate(size, lambda a: refused(a, topology, use, error, text))
        assert results == [True] * size


@pytest.mark.parametrize(
    ("topology", "use", "text"),
    [
        (Ring, lambda e: e.neighbor_alltoall([X]), r"trees must .*: expected 2, got 1"),
        (Ring, lambda e: e.neighbor_alltoall(X), r"trees must .*: expected 2, got Tensor"),
        (Ring, lambda e: e.neighbor_allgather(X, like=[X] * 3), "like= must .* arrives at a rank"),
        (Ring, lambda e: e.neighbor_allgather(X, out=[X]), "out= must .* expected 2, got 1"),
        (Ring, lambda e: e.neighbor_allgather([X, "x"]), "every leaf of the tree must be a tensor"),
        (LONE, lambda e: e.neighbor_allgather([X, "x"]), "every leaf of the tree must be a tensor"),
        (Ring, lambda e: e.neighbor_allgather(X, shapes="any"), "shapes must be 'same'"),
        (Ring, lambda e: e.neighbor_allgather(X, like=[X] * 2, shapes="discover"), "leave one"),
        (Ring, lambda e: e.neighbor_allgather(X, out=[X] * 2, shapes="discover"), "leave one"),
        (Ring, lambda e: e.neighbor_allreduce(X.int()), "only floating-point and complex"),
        (Ring, lambda e: e.neighbor_allreduce(X, [0.5, 0.5]), "weights must be 3 finite numbers"),
        (Ring, lambda e: e.neighbor_allreduce(X, [0, 1, float("inf")]), "3 finite numbers"),
        (Ring, lambda e: e.neighbor_allreduce(X, torch.ones(2)), "weights must be 3 finite"),
        (Ring, lambda e: e.gossip_(X), "params must be tensors in a list"),
        (Ring, lambda e: e.gossip_([]), "params must be tensors in a list"),
        (Ring, lambda e: e.gossip_({"x": X}), "params must hold tensors .* got str"),
        (Ring, lambda e: e.gossip_([X.int()]), "only floating-point and complex"),
        (Ring, lambda e: e.gossip_([torch.ones(1).expand(3)]), "cannot write into an expanded"),
        (Ring, lambda e: e.gossip_([INFERENCE]), "cannot write into an inference tensor"),
        (Ring, lambda e: e.gossip_([torch.ones(2, 2).to_sparse()]), "expected a dense tensor"),
        (Ring, lambda e: e.gossip_([torch.ones(2, device="meta")]), "meta tensor"),
        (Ring, lambda e: e.consensus_distance([X.long()]), "only floating-point and complex"),
    ],
)
def test_wrong_arguments_are_refused(topology: object, use: Use, text: str) -> None:
    on_all_ranks(topology, use, ArgumentError, f"(?s){text}")


@pytest.mark.parametrize(
    ("topology", "use", "text"),
    [
        (LEAKY, lambda e: e.gossip_([X]), "must sum to 1, got 0.75 at rank 1"),
        (LEAKY.reverse(), lambda e: e.gossip_([X]), "must sum to 1, got 0.75 at rank 1"),
        (
            Schedule.one_peer_exponential,
            lambda e: e.gossip_([X]),
            "over a Schedule step= is needed",
        ),
        (Schedule.one_peer_exponential, lambda e: e.gossip_([X], -1), "step must be at least 0"),
        (Schedule.one_peer_exponential, lambda e: e.gossip_([X], 0.5), "step must be an int"),
        (Schedule.one_peer_exponential, lambda e: e.neighbor_allreduce(X), "step= is needed"),
        (Schedule.one_peer_exponential, lambda e: e.shift(X), "a Schedule has no axes"),
    ],
)
def test_topologies_that_do_not_fit_are_refused(topology: object, use: Use, text: str) -> None:
    on_all_ranks(topology, use, TopologyError, text)


def test_a_rank_that_sends_nothing_must_say_what_arrives() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(LONE, adapter)
        if exchange.rank == 1:
            with pytest.raises(ArgumentError, match=r"no edge leaves this rank .* give like="):
                exchange.neighbor_alltoall([])

    simulate(2, program)
