"""ring_fold(keep=...): terms that backward does not compute again, without another meaning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.ring_memory import saved_bytes
from collectives import Adapter, Exchange, Ring
from collectives.errors import ArgumentError, CapturedTensorError
from tests.support.worlds import SIZES, World

KEEP = [1, 2]


def rounds(adapter: Adapter, keep: int) -> tuple[int, int]:
    """Return how often a term was computed in forward, and in backward."""
    exchange = Exchange(Ring, adapter)
    sources: list[int] = []

    def term(source: int, block: Tensor) -> Tensor:
        sources.append(source)
        return block.square().sum()

    x = torch.ones(3, requires_grad=True)
    loss = exchange.ring_fold(term, x, keep=keep)
    forward = len(sources)
    loss.backward()
    exchange.check_backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * exchange.size] * 3
    return forward, len(sources) - forward


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keep", [0, *KEEP])
def test_what_is_kept_is_not_computed_again(world: World, size: int, keep: int) -> None:
    assert world(rounds, size, keep) == [(size, max(0, size - keep))] * size


@pytest.mark.parametrize(("way", "sizes"), [("keep=1", (1, 2, 4, 8)), ("keep=2", (3, 4, 8))])
def test_what_autograd_keeps_does_not_grow_with_the_ranks(way: str, sizes: tuple[int, ...]) -> None:
    kept = {saved_bytes(way, size) for size in sizes}
    assert len(kept) == 1
    assert saved_bytes("ring_fold", 8) < kept.pop() < saved_bytes("loop of shifts", 8)


def test_where_all_terms_are_kept_autograd_keeps_nothing_to_compute_them_again() -> None:
    assert saved_bytes("keep=2", 2) < saved_bytes("keep=2", 3)


def mixed(adapter: Adapter, keep: int) -> list[object]:
    """Rank 0 needs no gradient and skips all blocks but one; the last rank has no loss of it."""
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    x = torch.ones(2, requires_grad=rank > 0)

    def term(source: int, block: tuple[Tensor, Tensor]) -> Tensor | None:
        return None if rank == 0 and source != size - 1 else block[0].sum() * block[1]

    total = exchange.ring_fold(term, (x, torch.tensor(rank + 1)), keep=keep)
    loss = torch.zeros((), requires_grad=True) * 1 if rank == size - 1 else total
    exchange.join(loss).backward()
    exchange.check_backward()
    return [total.item(), None if x.grad is None else x.grad.tolist()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keep", KEEP)
def test_ranks_that_skip_blocks_or_need_no_gradient_take_part(
    world: World, size: int, keep: int
) -> None:
    everything = 2.0 * sum(range(1, size + 1))
    expected: list[list[object]] = [[2.0 * size, None]]
    for rank in range(1, size):
        users = size - 2 if rank < size - 1 else size - 1  # rank 0 uses the last block only
        expected.append([everything, [users * (rank + 1.0)] * 2])
    assert world(mixed, size, keep) == expected


def own_block(adapter: Adapter, keep: int) -> tuple[bool, list[float]]:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank
    x = torch.tensor([2.0], requires_grad=True)
    y = exchange.ring_fold(lambda source, b: b if source == rank else None, x, keep=keep)
    with torch.no_grad():
        alias = y.data_ptr() == x.data_ptr()
    y.backward()
    assert x.grad is not None
    return alias, x.grad.tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keep", [0, *KEEP])
def test_a_block_that_is_returned_is_no_alias(world: World, size: int, keep: int) -> None:
    assert world(own_block, size, keep) == [(False, [1.0])] * size


def refusals(adapter: Adapter, keep: int) -> list[str]:
    """Every term is looked at, whether it is kept or not; other ranks do not wait for it."""
    exchange = Exchange(Ring, adapter)
    layer, rank = nn.Linear(3, 5, bias=False), exchange.rank
    x = torch.ones(3, requires_grad=True)
    texts = []
    with pytest.raises(CapturedTensorError) as captured:
        exchange.ring_fold(lambda _, b: layer(b).sum(), x, keep=keep)
    texts.append(str(captured.value))

    def later(source: int, b: Tensor) -> Tensor:
        return b.sum() if source == rank else layer(b).sum()

    with pytest.raises(CapturedTensorError) as late:
        exchange.ring_fold(later, x, keep=keep).backward()
    texts.append(str(late.value))
    return texts


@pytest.mark.parametrize("keep", KEEP)
def test_captured_tensors_are_refused_in_kept_terms_too(world: World, keep: int) -> None:
    for texts in world(refusals, 3, keep):
        assert all("a tensor of shape (5, 3), torch.float32," in text for text in texts)


def raises_in_a_term(adapter: Adapter, keep: int) -> int:
    exchange = Exchange(Ring, adapter)

    def term(source: int, block: Tensor) -> Tensor:
        if exchange.rank == 1 and source == 0:
            raise ValueError("no labels")
        return block.sum()

    try:
        exchange.ring_fold(term, torch.ones(3, requires_grad=True), keep=keep)
    except ValueError:
        assert exchange.rank == 1
    return int(exchange.shift(torch.tensor(exchange.rank)).item())


@pytest.mark.parametrize("keep", [0, *KEEP])
def test_a_term_that_raises_leaves_nothing_behind(world: World, keep: int) -> None:
    assert world(raises_in_a_term, 3, keep) == [2, 0, 1]


@pytest.mark.parametrize("keep", [-1, 1.5, True, "2"])
def test_another_keep_is_refused(world: World, keep: object) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        with pytest.raises(ArgumentError, match=r"keep must be a number of terms, 0 or more, got"):
            exchange.ring_fold(lambda _, b: b, torch.ones(1), keep=keep)  # type: ignore[arg-type]

    world(program, 2)


def twice(adapter: Adapter, keep: int) -> str | list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.full((2,), 1.0 + exchange.rank, requires_grad=True)
    loss = exchange.ring_fold(lambda _, b: b.pow(3).sum(), x, keep=keep)
    try:
        (once,) = torch.autograd.grad(loss, x, create_graph=True)
    except ArgumentError as refused:
        return str(refused)
    (second,) = torch.autograd.grad(once.sum(), x)
    numbers: list[float] = second.tolist()
    return numbers


@pytest.mark.parametrize("keep", [0, *KEEP])
@pytest.mark.parametrize("size", SIZES)
def test_a_second_derivative_is_right_or_refused(world: World, size: int, keep: int) -> None:
    """A loop of which all is kept is an ordinary one; every rank has the cube of every block."""
    for rank, told in enumerate(world(twice, size, keep)):
        if 1 < size <= keep:
            assert told == [6.0 * size * (1 + rank)] * 2
        else:
            assert isinstance(told, str)
            assert "cannot be differentiated twice" in told
