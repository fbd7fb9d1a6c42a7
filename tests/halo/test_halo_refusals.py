"""What cannot be done is refused with a sentence: on every rank where all can know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Graph, Mesh, Ring
from collectives.errors import ArgumentError, CollectivesError, ExchangeMismatch, TopologyError
from collectives.testing import Simulation, simulate
from tests.support.worlds import World

Halo = Callable[[Exchange, Tensor], object]
Sizes = list[tuple[int, ...]]


def refusal(adapter: Adapter, topology: Mesh, sizes: Sizes, halo: Halo) -> str:
    exchange = Exchange(topology, adapter)
    try:
        halo(exchange, torch.zeros(sizes[exchange.rank]))
    except ArgumentError as error:
        # Nobody was left behind: the ranks can go on.
        assert exchange.shift(torch.tensor(1.0), axis=0).item() in (0.0, 1.0)
        return str(error)
    return ""


LINE = Mesh((3,), axes=("x",))


def test_a_halo_wider_than_a_shard_is_refused_on_all_ranks_alike(world: World) -> None:
    sizes: Sizes = [(4,), (2,), (4,)]
    texts = world(refusal, 3, LINE, sizes, lambda e, x: e.halo_exchange(x, {0: "x"}, 3))
    for rank, text in enumerate(texts):
        assert "at least 3 rows on every rank that gives so many, got 2 at position 1" in text
        assert f"(4, 2, 4); use fewer ranks along the axis, or a narrower halo (rank {rank}" in text


def test_a_reflection_wider_than_the_last_shard_is_refused_on_all_ranks_alike() -> None:
    sizes: Sizes = [(4,), (4,), (2,)]
    halo: Halo = lambda e, x: e.halo_exchange(x, {0: "x"}, (0, 2), "reflect")  # noqa: E731
    texts = simulate(3, refusal, LINE, sizes, halo)
    assert all("expected at least 3 rows there, got 2 at position 2" in text for text in texts)


def test_shards_that_form_no_grid_are_refused_on_all_ranks_alike() -> None:
    mesh = Mesh((2, 2), axes=("y", "x"))
    sizes: Sizes = [(3, 4), (3, 4), (3, 4), (2, 4)]
    dims: dict[int, str | int | None] = {0: "y", 1: "x"}
    texts = simulate(4, refusal, mesh, sizes, lambda e, x: e.halo_exchange(x, dims))
    for text in texts:
        assert "ranks 2 and 3 are on one line of axis 'x'" in text
        assert "must have the same size along dim 0: got 3 and 2" in text


def test_a_dim_that_is_not_sharded_must_agree() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        exchange.halo_exchange(torch.zeros(3 + exchange.rank, 4), {1: "ring"})

    with pytest.raises(ExchangeMismatch, match=r"float32\[3, 1\].* / .*float32\[4, 1\]"):
        simulate(2, program)


@pytest.mark.parametrize(
    "other", [{"width": 2}, {"width": (1, 0)}, {"mode": "reflect"}, {"dims": {1: "ring"}}]
)
def test_ranks_with_other_arguments_are_a_mismatch(other: dict[str, object]) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        arguments = {"dims": {0: "ring"}, "width": 1, **(other if exchange.rank else {})}
        exchange.halo_exchange(torch.zeros(4, 4), **arguments)  # type: ignore[arg-type]

    with pytest.raises(ExchangeMismatch, match="halo_exchange"):
        simulate(2, program)


def test_sizes_that_change_on_one_rank_alone_are_a_mismatch_that_names_the_remedy() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        for step in range(2):
            exchange.halo_exchange(torch.zeros(3 + step * exchange.rank), {0: "ring"})

    with pytest.raises(ExchangeMismatch, match=r"some ranks only\? shapes='discover'"):
        simulate(2, program)


WRONG: list[tuple[Halo, str]] = [
    (lambda e, x: e.halo_exchange(x, {}), "dims must say which dim lies along which axis"),
    (lambda e, x: e.halo_exchange(x, {2: "x"}), "a dim must be in -2..1, got 2"),
    (lambda e, x: e.halo_exchange(x, {True: "x"}), "a dim must be in -2..1, got True"),
    (lambda e, x: e.halo_exchange(x, {0: "x", -2: "y"}), "each dim may lie along one axis"),
    (lambda e, x: e.halo_exchange(x, {0: "x", 1: 1}), "each axis along one dim"),
    (lambda e, x: e.halo_exchange(x, {0: "x"}, -1), "a width must be a number of rows"),
    (lambda e, x: e.halo_exchange(x, {0: "x"}, (1, 2, 3)), "a width must be a number"),  # type: ignore[arg-type]
    (lambda e, x: e.halo_exchange(x, {0: "x"}, {1: 2}), "must have the same dims"),
    (lambda e, x: e.halo_exchange(x, {0: "x"}, 1, "circular"), "a periodic axis wraps by itself"),  # type: ignore[arg-type]
    (lambda e, x: e.halo_exchange([x], {0: "x"}), "expected a tensor, got list"),  # type: ignore[arg-type]
    (lambda e, x: e.halo_exchange(x, {0: "x"}, shapes="ask"), "'same', 'discover' or 'once'"),  # type: ignore[arg-type]
    (lambda e, x: e.halo_exchange(x.to_sparse(), {0: "x"}), "expected a dense tensor"),
    (lambda e, x: e.halo_reduce(x, {0: "x"}, 3), "a padded shard of at least 6 rows"),
    (lambda e, x: e.halo_exchange(x, {0: "x"}, out=x), "out= must be a plain buffer of shape"),
    (lambda e, x: e.start_halo_exchange(x, {0: "x"}, out=x), "out= must be a plain buffer"),
]


@pytest.mark.parametrize(
    ("halo", "text"), WRONG, ids=lambda value: value if type(value) is str else ""
)
@pytest.mark.parametrize("size", [1, 2])
def test_wrong_arguments_are_refused_on_one_rank_as_on_many(
    halo: Halo, text: str, size: int
) -> None:
    def program(adapter: Adapter) -> str:
        exchange = Exchange(lambda size: Mesh((1, size), axes=("y", "x")), adapter)
        with pytest.raises(ArgumentError) as caught:
            halo(exchange, torch.zeros(4, 4))
        return str(caught.value)

    for rank, message in enumerate(simulate(size, program)):
        assert text in message
        assert f"(rank {rank} of {size})" in message or "shapes must be" in message


def test_a_graph_has_no_axes_and_a_mesh_no_other_ones() -> None:
    def program(adapter: Adapter) -> None:
        x = torch.zeros(4)
        with pytest.raises(TopologyError, match="axis must be 'ring'"):
            Exchange(Ring, adapter).halo_exchange(x, {0: "x"})
        with pytest.raises(TopologyError, match="halo_exchange"):
            Exchange(Graph(1, []), adapter).halo_exchange(x, {0: 0})

    simulate(1, program)


def test_a_started_halo_that_is_thrown_away_is_named() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        exchange.start_halo_exchange(torch.zeros(3), {0: "ring"})
        exchange.mark_step(1)

    with pytest.raises(CollectivesError, match=r"start_halo_exchange at .*test_halo_refusals"):
        Simulation(2).run(program)


def test_a_shard_that_is_written_to_while_its_halo_travels_is_an_error() -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        x = torch.zeros(3)
        pending = exchange.start_halo_exchange(x, {0: "ring"})
        x += 1
        pending.wait()

    with pytest.raises(CollectivesError, match="was modified in place between start and wait"):
        simulate(2, program)
