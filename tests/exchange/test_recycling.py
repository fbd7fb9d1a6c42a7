"""Memory of large results is used again, as soon as nobody has them, and never before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Ring
from collectives.messages import Leaf
from collectives.recycling import WORTH_IT, Recycling
from tests.support.worlds import SIZES, World

SHAPE = (WORTH_IT // 8,)
LEAF = Leaf(SHAPE, torch.float64)


def test_memory_that_nobody_has_is_used_again() -> None:
    recycling = Recycling()
    first = recycling.empty(LEAF)
    place = first.data_ptr()
    del first
    again = recycling.empty(Leaf((2, WORTH_IT // 8), torch.float32))  # as many bytes
    assert again.data_ptr() == place
    assert again.shape == (2, WORTH_IT // 8)
    assert again.is_contiguous()


def _a_graph(x: Tensor) -> object:
    return x.detach() * torch.ones(1, dtype=x.dtype, requires_grad=True)


HOLDERS: dict[str, Callable[[Tensor], object]] = {
    "itself": lambda x: x,
    "a view": lambda x: x[1:2],
    "an alias": lambda x: x.detach(),
    "a numpy array": lambda x: x.numpy(),
    "dlpack": torch.utils.dlpack.to_dlpack,  # type: ignore[attr-defined]
    "the storage": lambda x: x.untyped_storage(),
    "a typed storage": lambda x: x.storage(),
    "a graph": _a_graph,
    "a memory view": lambda x: memoryview(x.numpy())[8:],  # type: ignore[arg-type]
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_has_is_not(holder: str) -> None:
    recycling = Recycling()
    first = recycling.empty(LEAF)
    place = first.data_ptr()
    held = HOLDERS[holder](first)
    del first
    other = recycling.empty(LEAF)
    assert other.data_ptr() != place, held
    del held
    assert recycling.empty(LEAF).data_ptr() == place


def test_memory_that_another_process_may_have_is_not() -> None:
    recycling = Recycling()
    first = recycling.empty(LEAF).share_memory_()
    place = first.data_ptr()
    del first
    assert recycling.empty(LEAF).data_ptr() != place


def test_memory_of_another_size_is_not() -> None:
    recycling = Recycling()
    first = recycling.empty(LEAF)
    first.untyped_storage().resize_(0)  # as FSDP does
    del first
    assert recycling.empty(LEAF).untyped_storage().nbytes() == LEAF.nbytes


def test_only_a_few_are_kept() -> None:
    recycling = Recycling()
    storages = [weakref.ref(recycling.empty(LEAF).untyped_storage()) for _ in range(3)]
    assert len({id(storage()) for storage in storages}) == 1  # each was free for the next
    held = [recycling.empty(LEAF) for _ in range(9)]
    del held
    places = {recycling.empty(LEAF).data_ptr() for _ in range(9)}
    assert len(places) == 1
    large = Leaf((257 * 1024 * 1024,), torch.uint8)
    place = recycling.empty(large)
    gone = weakref.ref(place.untyped_storage())
    del place
    assert gone() is None


def ring_loop(adapter: Adapter, held: int) -> list[float]:
    """Hand a block round and round, and keep the last so many: what is held stays as it was."""
    exchange = Exchange(Ring, adapter)
    block = torch.full(SHAPE, float(exchange.rank), dtype=torch.float64)
    kept = [block]
    for _ in range(9):
        block = exchange.shift(block)
        kept = [*kept[-held:], block]
        assert [x.unique().numel() for x in kept] == [1] * len(kept)
    return [x[0].item() for x in kept]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("held", [1, 2, 6])
def test_results_that_are_held_stay_as_they_were(world: World, size: int, held: int) -> None:
    for rank, values in enumerate(world(ring_loop, size, held)):
        assert values == [float((rank - 9 + back) % size) for back in range(held, -1, -1)]


def saved(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.full(SHAPE, 1.0 + exchange.rank, dtype=torch.float64, requires_grad=True)
    losses = [exchange.shift(x).square().sum() for _ in range(3)]  # each square saves its result
    exchange.join(torch.stack(losses).sum()).backward()
    assert x.grad is not None
    return [x.grad.unique().item()]


@pytest.mark.parametrize("size", SIZES)
def test_what_a_graph_has_saved_stays_as_it_was(world: World, size: int) -> None:
    assert world(saved, size) == [[6.0 * (rank + 1)] for rank in range(size)]


def graph_is_gone(adapter: Adapter, operation: str) -> bool:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    block = x * 2
    alive = weakref.ref(block)
    for _ in range(2):
        if operation == "scan":
            loss = exchange.ring_scan(lambda _, c, b: c + b.square().sum(), torch.zeros(()), block)
        elif operation == "pass":
            loss = sum(b.square().sum() for _, b in exchange.ring_pass(block))  # type: ignore[assignment]
        elif operation == "shift":
            loss = exchange.shift(block).square().sum()
        else:
            loss = exchange.ring_fold(lambda _, b: b.square().sum(), block, keep=int(operation))
        exchange.join(loss).backward()
        exchange.mark_step()
        alive, block = weakref.ref(block), x * 2
        del loss
    return alive() is None


@pytest.mark.parametrize("operation", ["0", "1", "2", "scan", "pass", "shift"])
def test_a_graph_goes_with_its_loss_without_garbage_collection(
    world: World, operation: str
) -> None:
    """A cycle through a node would keep a step's memory until the next collection."""
    gc.disable()
    try:
        assert world(graph_is_gone, 3, operation) == [True] * 3
    finally:
        gc.enable()
