"""One body under three adapters: the same bits, and the gradient of a single process.

Law 5: operations that move data are bit-equal in every runtime. Law 9: the gradient is that of the
sum over ranks of the losses; DDP divides by their number, so a mean local loss gives the gradient
of the whole batch in one process, without a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter
from tests.support.probe import NAMESPACES, fabric, probe_class, trainer

ROWS = 3  # of each rank


def rows_of(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)


def net() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(4, 2, dtype=torch.float64)


def gradient_of(layer: nn.Linear) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad


def loss_of(mine: Tensor, exchange: Exchange) -> Tensor:
    """Use what comes from both sides, once and twice removed; the left only on even ranks."""
    sides = exchange.exchange(to_left=mine * 2, to_right=mine.exp())
    far = exchange.shift(mine, 2)
    loss = (mine * sides.from_right).sum(1) + (mine * far.tanh()).sum(1)
    if exchange.rank % 2 == 0:
        loss = loss + (mine * sides.from_left).sum(1)
    return exchange.join(loss.mean())


def loss_of_all(outputs: list[Tensor]) -> Tensor:
    """Write the same for all ranks in one process, without any exchange."""
    size = len(outputs)
    losses = []
    for rank, mine in enumerate(outputs):
        from_left, from_right = outputs[(rank - 1) % size].exp(), outputs[(rank + 1) % size] * 2
        loss = (mine * from_right).sum(1) + (mine * outputs[(rank - 2) % size].tanh()).sum(1)
        if rank % 2 == 0:
            loss = loss + (mine * from_left).sum(1)
        losses.append(loss.mean())
    return torch.stack(losses).mean()


def reference(size: int) -> tuple[Tensor, Tensor]:
    layer = net()
    loss = loss_of_all([layer(rows_of(rank)) for rank in range(size)])
    loss.backward()
    return loss.detach(), gradient_of(layer)


def moved(adapter: Adapter, rank: int) -> list[Tensor]:
    """Every operation that moves data, on awkward strides."""
    exchange = Exchange(Ring, adapter)
    size = exchange.size
    rows = rows_of(rank).t()
    sides = exchange.exchange(to_left=rows[::2], to_right={"a": rows, "b": rows.float()})
    pairs = [(source, (source + 1) % size) for source in range(size)]
    return [
        exchange.shift(rows, 3),
        sides.from_right,
        sides.from_left["a"],
        sides.from_left["b"],
        exchange.permute(rows, pairs),
    ]


# -- one runtime each: (loss on this rank, gradient as the optimizer sees it, what moved) --------

Outcome = tuple[Tensor, Tensor, list[Tensor]]


def under_lightning(namespace: str, rank: int, size: int) -> Outcome:
    found: dict[str, Any] = {}

    class Model(probe_class(namespace)):  # type: ignore[misc] # of whichever namespace
        def __init__(self) -> None:
            super().__init__()
            self.layer = net()
            self.exchange = Exchange(Ring, self.adapter)

        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss = loss_of(self.layer(batch[0]), self.exchange)
            found["loss"] = loss.detach()
            return loss

        def on_after_backward(self) -> None:
            found["grad"] = gradient_of(self.layer).clone()

    module = Model()
    rows = DataLoader(TensorDataset(rows_of(rank)), batch_size=ROWS)
    trainer(namespace, devices=size).fit(module, rows, rows)
    return found["loss"], found["grad"], moved(module.adapter, rank)


def under_fabric(namespace: str, rank: int, size: int) -> Outcome:
    runtime = fabric(namespace, devices=size)
    runtime.launch()
    adapter = FabricAdapter(runtime)
    layer = net()
    model, _ = runtime.setup(layer, torch.optim.SGD(layer.parameters(), 0.1))
    loss = loss_of(model(rows_of(rank)), Exchange(Ring, adapter))
    runtime.backward(loss)
    return loss.detach(), gradient_of(layer), moved(adapter, rank)


def under_ddp(_namespace: str, rank: int, _size: int) -> Outcome:
    with RawDDPAdapter() as adapter:
        layer = net()
        model = DistributedDataParallel(layer)
        loss = loss_of(model(rows_of(rank)), Exchange(Ring, adapter))
        loss.backward()
        return loss.detach(), gradient_of(layer), moved(adapter, rank)


RUNTIMES: list[Callable[[str, int, int], Outcome]] = [under_lightning, under_fabric, under_ddp]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_values_and_gradients_are_bit_equal_in_three_runtimes_and_those_of_one_process(
    namespace: str, rank: int, world_size: int
) -> None:
    outcomes = [runtime(namespace, rank, world_size) for runtime in RUNTIMES]
    whole, gradient = reference(world_size)
    first = outcomes[0]
    for loss, grad, tensors in outcomes:
        assert torch.equal(loss, first[0])
        assert torch.equal(grad, first[1])
        assert all(map(torch.equal, tensors, first[2]))
        mean = loss.clone()
        dist.all_reduce(mean)
        torch.testing.assert_close(mean / world_size, whole, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(grad, gradient, rtol=1e-13, atol=1e-14)


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_one_process_without_any_group_gives_the_same_bits(namespace: str) -> None:
    whole, gradient = reference(1)
    runtime = fabric(namespace, devices=1, strategy="auto")
    for adapter in (FabricAdapter(runtime), RawDDPAdapter()):
        layer = net()
        loss = loss_of(layer(rows_of(0)), Exchange(Ring, adapter))
        loss.backward()
        assert torch.equal(loss.detach(), whole)
        torch.testing.assert_close(gradient_of(layer), gradient, rtol=1e-14, atol=1e-15)
    assert not dist.is_initialized()
