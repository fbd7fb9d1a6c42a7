"""torch.func over every operation, with batches of other sizes, and inside training loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from adapters.fabric import FabricAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import simulate
from tests.support.probe import NAMESPACES, fabric, loader, ring_class, trainer
from tests.support.transformed import of, tensor
from tests.support.worlds import World

SHOWN = pytest.mark.cell("torch.func", "raw")
OPERATIONS: dict[str, Callable[[Exchange, Tensor], Tensor]] = {
    "all_reduce": lambda e, x: e.all_reduce(x),
    "all_reduce(max)": lambda e, x: e.all_reduce(x, op="max"),
    "all_gather": lambda e, x: e.all_gather(x),
    "reduce_scatter": lambda e, x: e.reduce_scatter(x),
    "all_to_all": lambda e, x: e.all_to_all(x),
    "broadcast": lambda e, x: e.broadcast(x, 0),
    "permute": lambda e, x: e.permute(x, [(e.size - 1, 0)], fill=7),
    "halo_exchange": lambda e, x: e.halo_exchange(x, {0: "ring"}),
    "halo_reduce": lambda e, x: e.halo_reduce(x, {0: "ring"}),
    "neighbor_allgather": lambda e, x: torch.cat(e.neighbor_allgather(x)),
    "neighbor_allreduce": lambda e, x: e.neighbor_allreduce(x),
    "ring_pass": lambda e, x: torch.stack([(s + 1) * b for s, b in e.ring_pass(x)]).sum(0),
    "ring_fold": lambda e, x: e.ring_fold(lambda s, b, x: (s + 1) * b * x, x, x),
    "shapes='discover'": lambda e, x: e.shift(x, shapes="discover"),
    "like=": lambda e, x: e.shift(x, like=x),
}  # fmt: skip


def row_by_row(adapter: Adapter, name: str) -> Tensor:
    exchange = Exchange(Ring, adapter)
    operation, rows = partial(OPERATIONS[name], exchange), of(exchange.rank, 2, 60)
    whole = vmap(operation)(rows)
    torch.testing.assert_close(whole, torch.stack([operation(row) for row in rows]))
    gradients = vmap(grad(lambda x: operation(x).pow(2).sum()))(rows)
    single = [grad(lambda x: operation(x).pow(2).sum())(row) for row in rows]
    torch.testing.assert_close(gradients, torch.stack(single))
    return tensor(whole)


@SHOWN
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_gives_under_vmap_what_it_gives_row_by_row(world: World, name: str) -> None:
    world(row_by_row, 3, name)


def of_other_sizes(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    with pytest.raises(ExchangeMismatch, match=r"tensors: .* / ") as caught:
        vmap(exchange.shift)(of(exchange.rank, 3 + exchange.rank, 2))
    return str(caught.value)


@SHOWN
def test_batches_of_different_sizes_are_a_mismatch_that_names_both(ranks: World) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        vmap(exchange.shift)(of(exchange.rank, 3 + exchange.rank, 2))

    with pytest.raises(ExchangeMismatch, match=r"float64\[3, 2\].*float64\[4, 2\]"):
        simulate(2, program)
    for text in ranks(of_other_sizes, 2):
        assert "float64[3, 2]" in text
        assert "float64[4, 2]" in text


def row_gradients(exchange: Exchange, rows: Tensor) -> Tensor:
    def loss(row: Tensor) -> Tensor:
        return (exchange.rank + 1) * (row * exchange.shift(row**2)).sum()

    return tensor(vmap(grad(loss))(rows))


def assert_right(exchange: Exchange, rows: Tensor, gradients: Tensor) -> None:
    """All ranks have the same rows; the next one weights what came from here."""
    following = (exchange.rank + 1) % exchange.size
    weight = exchange.rank + 1 + 2 * (following + 1)
    torch.testing.assert_close(gradients, weight * rows**2)


@pytest.mark.cell("torch.func", "lightning")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_gradients_of_each_row_in_a_training_step(namespace: str) -> None:
    class OfEachRow(ring_class(namespace)):  # type: ignore[misc]
        def training_step(self, batch: list[Tensor]) -> Tensor:
            gradients = row_gradients(self.exchange, batch[0])
            assert_right(self.exchange, batch[0], gradients)
            return tensor(super().training_step(batch))

    module = OfEachRow()
    trainer(namespace).fit(module, loader(), loader())
    assert module.exchange.stats()["exchanges"] == 2 * (2 + 2)  # both ways, twice in each step


@pytest.mark.cell("torch.func", "fabric")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_gradients_of_each_row_in_a_fabric_loop(namespace: str) -> None:
    runtime = fabric(namespace)
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime))
    for (rows,) in runtime.setup_dataloaders(loader(), use_distributed_sampler=False):
        assert_right(exchange, rows, row_gradients(exchange, rows))
