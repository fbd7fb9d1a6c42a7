"""B: bad arguments, each refused with a sentence before anything is posted. See README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Mesh, Received, Ring
from collectives.errors import ArgumentError, CollectivesError, TopologyError
from collectives.testing import SimulatedAdapter, Simulation

X = torch.ones(2, 3)
Y = torch.zeros(2, 3)
Pairs = Sequence[tuple[int, int]]


def quantized() -> Tensor:
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def as_tensor(wrong: object) -> Tensor:
    return cast("Tensor", wrong)


def permute(exchange: Exchange, *pairs: tuple[object, ...]) -> Tensor:
    return exchange.permute(X, cast("Pairs", pairs))


BAD: dict[str, tuple[type[CollectivesError], str, Callable[[Exchange], object]]] = {
    "number": (ArgumentError, "float at tree", lambda e: e.shift(1.0)),
    "list": (ArgumentError, r"int at tree\[0\]", lambda e: e.shift([1, X])),
    "numpy": (ArgumentError, "ndarray at tree", lambda e: e.shift(X.numpy())),
    "text": (ArgumentError, r"str at tree\['a'\]", lambda e: e.shift({"a": "b"})),
    "sparse": (ArgumentError, "dense tensor", lambda e: e.shift(X.to_sparse())),
    "meta": (ArgumentError, "meta tensor", lambda e: e.shift(X.to("meta"))),
    "quantized": (ArgumentError, "loses its scale", lambda e: e.shift(quantized())),
    "axis": (TopologyError, "ring", lambda e: e.shift(X, axis="tp")),
    "shapes": (ArgumentError, "shapes must be", lambda e: e.shift(X, shapes="other")),  # type: ignore[arg-type]
    "discover": (ArgumentError, "leave one", lambda e: e.shift(X, like=X, shapes="discover")),
    "peer as text": (ArgumentError, "pairs must hold", lambda e: permute(e, (0, "0"))),
    "peer as bool": (ArgumentError, "pairs must hold", lambda e: permute(e, (0, False))),
    "peer as float": (ArgumentError, "pairs must hold", lambda e: permute(e, (0, 0.0))),
    "peer without pair": (ArgumentError, "pairs must hold", lambda e: permute(e, (0,))),
    "two sources": (
        ArgumentError,
        "every source may stand in one pair only",
        lambda e: permute(e, (0, 0), (0, 0)),
    ),
    "timeout 0": (ArgumentError, "timeout must be", lambda e: e.shift(X, timeout=0)),
    "timeout nan": (ArgumentError, "timeout must be", lambda e: e.shift(X, timeout=float("nan"))),
    "timeout text": (ArgumentError, "timeout must be", lambda e: e.shift(X, timeout="3")),  # type: ignore[arg-type]
    "out shape": (ArgumentError, "out= must hold", lambda e: e.shift(X, out=torch.ones(3))),
    "out dtype": (ArgumentError, "out= must hold", lambda e: e.shift(X, out=X.double())),
    "out leaf": (
        ArgumentError,
        "needs no gradient",
        lambda e: e.shift(X, out=torch.ones(2, 3, requires_grad=True)),
    ),
    "out is sent": (ArgumentError, "shares memory", lambda e: e.shift(X, out=X)),
    "out twice": (
        ArgumentError,
        "shares memory",
        lambda e: e.exchange(to_left=X, to_right=X, out=Received(Y, Y)),
    ),
    "out tree": (ArgumentError, "built like", lambda e: e.shift([X, X], out=[X + 1])),
    "join": (ArgumentError, "join: expected", lambda e: e.join(as_tensor(3.0))),
    "step": (ArgumentError, "mark_step", lambda e: e.mark_step(cast("int", "3"))),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("size", [1, 2])
def test_a_bad_argument_is_refused_before_anything_is_posted(size: int, case: str) -> None:
    """C37: argument errors (no public report)."""
    kind, text, call = BAD[case]

    def program(adapter: SimulatedAdapter) -> float:
        exchange = Exchange(Ring, adapter)
        with pytest.raises(kind, match=text):
            call(exchange)
        assert exchange.stats()["exchanges"] == 0
        return exchange.shift(torch.tensor(float(exchange.rank))).item()

    simulation = Simulation(size, seed=0)
    assert simulation.run(program) == [(r - 1) % size for r in range(size)]
    assert sum(edge.messages for edge in simulation.traffic.values()) == (0 if size == 1 else 2)


def test_an_exchange_needs_a_topology_and_an_adapter() -> None:
    """C37: refused at construction; plain torch fails at the first message."""
    adapter = RawDDPAdapter()
    for wrong in (4, "ring", None):
        with pytest.raises(ArgumentError, match="expected a topology"):
            Exchange(cast("Ring", wrong), adapter)
        with pytest.raises(ArgumentError, match="expected an adapter"):
            Exchange(Ring, cast("Adapter", wrong))
    with pytest.raises(ArgumentError, match="timeout must be"):
        Exchange(Ring, adapter, timeout=-1)
    with pytest.raises(TopologyError, match="2 ranks, but the group has 1"):
        Exchange(Mesh((1, 2)), adapter).shift(X, axis=0)


@pytest.mark.parametrize("wrong", ["tp", 3, torch.ones(1)], ids=repr)
def test_something_else_than_a_group_is_refused(wrong: object) -> None:
    """C37: plain torch looks a name up among its registered groups."""
    with pytest.raises(ArgumentError, match="expected a ProcessGroup, got"):
        RawDDPAdapter(cast("None", wrong))


def empty(adapter: SimulatedAdapter) -> bool:
    exchange = Exchange(Ring, adapter)
    nothing: dict[str, Tensor] = {}
    assert exchange.shift([]) == []
    assert exchange.shift(nothing) == {}
    assert exchange.shift((None, [None])) == (None, [None])
    assert exchange.exchange(to_left=None, to_right=None) == (None, None)
    assert exchange.permute(X, []).eq(0).all()
    return exchange.stats()["messages_sent"] == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_empty_exchange_sends_nothing(size: int) -> None:
    """C37: plain torch raises ``IndexError: list index out of range`` for an empty batch."""
    simulation = Simulation(size)
    assert all(simulation.run(empty))
    assert not simulation.traffic
