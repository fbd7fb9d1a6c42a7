"""Bad input is refused before anything is posted: on one rank as on two."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from collectives import Adapter, Context, Exchange, Graph, Mesh, Received, Ring
from collectives.errors import ArgumentError, CollectivesError, ExchangeClosed, TopologyError
from tests.support.worlds import World

Refusal = tuple[Callable[[Exchange], object], type[CollectivesError], str]
ONES = torch.ones(2)


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop these dtypes
        return torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8)


def fake(exchange: Exchange) -> object:
    with FakeTensorMode():
        return exchange.shift(torch.ones(2))


@dataclasses.dataclass
class NotGiven:
    data: torch.Tensor
    more: torch.Tensor = dataclasses.field(init=False, default_factory=lambda: torch.ones(1))


def in_itself() -> list[object]:
    tree: list[object] = [ONES]
    tree.append(tree)
    return tree


REFUSALS: dict[str, Refusal] = {
    "wrong axis name": (lambda e: e.shift(ONES, axis="x"), TopologyError, "'ring'"),
    "axis index": (lambda e: e.shift(ONES, axis=1), TopologyError, "got 1"),
    "offset": (lambda e: e.shift(ONES, 1.5), TopologyError, "1.5"),  # type: ignore[arg-type]
    "non-tensor leaf": (
        lambda e: e.shift({"a": [ONES, 3]}), ArgumentError, r"int at tree\['a'\]\[1\]"
    ),
    "string": (lambda e: e.shift("abc"), ArgumentError, "str"),
    "meta": (lambda e: e.shift(torch.ones(2, device="meta")), ArgumentError, "meta"),
    "sparse": (lambda e: e.shift(ONES.to_sparse()), ArgumentError, "layout"),
    "quantized": (
        lambda e: e.shift(quantized()),
        ArgumentError,
        "quantized",
    ),
    "double source": (lambda e: e.permute(ONES, [(0, 0), (0, 0)]), ArgumentError, "source"),
    "pair out of range": (lambda e: e.permute(ONES, [(0, 7)]), ArgumentError, "0, 7"),
    "pair of three": (lambda e: e.permute(ONES, [(0, 0, 0)]), ArgumentError, "pairs"),  # type: ignore[list-item]
    "discover and like": (
        lambda e: e.shift(ONES, like=ONES, shapes="discover"), ArgumentError, "leave one"
    ),
    "shapes": (lambda e: e.shift(ONES, shapes="any"), ArgumentError, "'any'"),  # type: ignore[arg-type]
    "timeout": (lambda e: e.shift(ONES, timeout=0), ArgumentError, "positive"),
    "timeout nan": (lambda e: e.shift(ONES, timeout=float("nan")), ArgumentError, "positive"),
    "out shape": (lambda e: e.shift(ONES, out=torch.ones(3)), ArgumentError, r"float32\[2\]"),
    "out dtype": (lambda e: e.shift(ONES, out=torch.ones(2).int()), ArgumentError, "int32"),
    "out tree": (lambda e: e.shift([ONES], out=[ONES, ONES]), ArgumentError, "built like"),
    "out is the input": (lambda e: e.shift(ONES, out=ONES), ArgumentError, "memory"),
    "out twice": (
        lambda e: e.exchange(
            to_left=ONES, to_right=ONES, out=Received(*[torch.empty(2)] * 2)
        ),
        ArgumentError,
        "memory",
    ),
    "out needs grad": (
        lambda e: e.shift(ONES, out=torch.empty(2, requires_grad=True)),
        ArgumentError,
        "requires_grad",
    ),
    "out expanded": (
        lambda e: e.shift(ONES, out=torch.empty(1).expand(2)), ArgumentError, "expanded"
    ),
    "fill a tensor": (lambda e: e.shift(ONES, fill=ONES), ArgumentError, "must be a number"),  # type: ignore[arg-type]
    "fake": (fake, ArgumentError, "fake tensor"),
    "field that is not given": (lambda e: e.shift(NotGiven(ONES)), ArgumentError, "init=False"),
    "tree in itself": (lambda e: e.shift(in_itself()), ArgumentError, "contains itself"),
    "very long timeout": (lambda e: e.shift(ONES, timeout=1e30), ArgumentError, "three years"),
    "join an int": (lambda e: e.join(torch.tensor(1)), ArgumentError, "floating-point"),
    "step": (lambda e: e.mark_step("one"), ArgumentError, "ints"),  # type: ignore[arg-type]
    "start": (lambda e: e.start_shift(ONES, axis="x"), TopologyError, "'ring'"),
}  # fmt: skip


def refused(adapter: Adapter, name: str) -> tuple[str, dict[str, float]]:
    act, error, pattern = REFUSALS[name]
    exchange = Exchange(Ring, adapter)
    with pytest.raises(error, match=pattern) as caught:
        act(exchange)
    assert exchange.shift(torch.ones(1)).item() == 1  # nothing was left on the wire
    return str(caught.value), exchange.stats()


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("size", [1, 2])
def test_bad_input_is_refused_before_anything_is_posted(world: World, size: int, name: str) -> None:
    for text, stats in world(refused, size, name):
        assert stats["exchanges"] == 1
        assert len(text) > 40


def on_another_device(adapter: Adapter) -> None:
    elsewhere = dataclasses.replace(adapter.context(), device=torch.device("meta"))

    class OnAnotherDevice:
        def context(self) -> Context:
            return elsewhere

    exchange = Exchange(Ring, OnAnotherDevice())
    with pytest.raises(ArgumentError, match="expected a tensor on meta, got one on cpu"):
        exchange.shift(ONES)


def test_a_tensor_on_another_device_is_refused(world: World) -> None:
    world(on_another_device, 1)


def several_axes(adapter: Adapter) -> None:
    exchange = Exchange(Mesh((1, adapter.context().size), axes=("y", "x")), adapter)
    for act in (
        lambda: exchange.shift(ONES),
        lambda: exchange.exchange(to_left=ONES, to_right=ONES),
        lambda: exchange.start_shift(ONES),
    ):
        with pytest.raises(TopologyError, match="'y', 'x'"):
            act()


@pytest.mark.parametrize("size", [1, 2])
def test_the_axis_must_be_named_where_there_are_several(world: World, size: int) -> None:
    world(several_axes, size)


def on_a_graph(adapter: Adapter) -> float:
    size = adapter.context().size
    exchange = Exchange(lambda n: Graph(n, [(r, (r + 1) % n) for r in range(n)]), adapter)
    for act in (
        lambda: exchange.shift(ONES),
        lambda: exchange.exchange(to_left=ONES, to_right=ONES),
        lambda: exchange.explain("shift"),
    ):
        with pytest.raises(TopologyError, match="Graph has no axes"):
            act()
    pairs = [(r, (r + 1) % size) for r in range(size)]
    return exchange.permute(torch.tensor(float(exchange.rank)), pairs).item()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_axis_operations_on_a_graph_are_refused_and_permute_works(world: World, size: int) -> None:
    assert world(on_a_graph, size) == [float((r - 1) % size) for r in range(size)]


def wrong_size(adapter: Adapter) -> None:
    for topology in (Ring(7), Mesh((2, 5)), lambda n: Ring(n + 1)):
        with pytest.raises(TopologyError, match="ranks, but the group has"):
            Exchange(topology, adapter).shift(ONES)
    with pytest.raises(TopologyError, match="expected a topology or a function"):
        Exchange(lambda n: n, adapter).shift(ONES)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("size", [1, 2])
def test_a_topology_of_another_size_is_refused(world: World, size: int) -> None:
    world(wrong_size, size)


def closed(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter, name="done")
    exchange.shift(ONES)
    exchange.close()
    exchange.close()
    for act in (
        lambda: exchange.shift(ONES),
        lambda: exchange.rank,
        lambda: exchange.join(ONES),
        lambda: exchange.mark_step(1),
        exchange.stats,
    ):
        with pytest.raises(ExchangeClosed, match="'done'"):
            act()
    never_used = Exchange(Ring, adapter)
    never_used.close()
    with pytest.raises(ExchangeClosed):
        never_used.shift(ONES)


@pytest.mark.parametrize("size", [1, 2])
def test_a_closed_exchange_says_so(world: World, size: int) -> None:
    world(closed, size)


def test_wrong_arguments_of_an_exchange_are_refused_at_once() -> None:
    class Alone:
        def context(self) -> object:
            raise AssertionError

    adapter: Adapter = Alone()  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match="expected an adapter"):
        Exchange(Ring, Ring(3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected an adapter"):
        Exchange(Ring, Alone)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Mesh\.balanced"):
        Exchange(Mesh, adapter)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected a topology"):
        Exchange(3, adapter)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'always' or 'off', got 'never'"):
        Exchange(Ring, adapter, verify="never")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="finite number of seconds"):
        Exchange(Ring, adapter, timeout=float("inf"))
    with pytest.raises(TopologyError, match="not yet"):
        Exchange(Ring, adapter).explain("shift")
