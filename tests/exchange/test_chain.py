"""The token chain: law 8. Every rank runs the same exchanges in backward, whatever its graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Ring
from collectives.chain import WARN_AT
from collectives.errors import DeadExchange, ExchangeError, ExchangeMismatch
from collectives.testing import simulate
from tests.support.worlds import SIZES, World


def leaf(rank: int) -> Tensor:
    return torch.tensor([1.0 + rank, 2.0], dtype=torch.float64, requires_grad=True)


def gradient(x: Tensor) -> list[float]:
    return [0.0, 0.0] if x.grad is None else x.grad.tolist()


def detached_loss(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    loss = exchange.shift(x).sum()
    exchange.join(loss.detach() if exchange.rank == 0 else loss).backward()
    return gradient(x)


def frozen_input(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    sent = x.detach() if exchange.rank == 0 else x
    exchange.join(exchange.shift(sent).sum()).backward()
    return gradient(x)


def unused_outputs(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    first, second = exchange.shift(x), exchange.shift(x, 2)
    loss = x.sum() * 0 if exchange.rank == 0 else first.sum() + 10 * second.sum()
    exchange.join(loss).backward()
    return gradient(x)


def causal_skip(adapter: Adapter) -> list[float]:
    """Ring attention's pattern: a block that comes from a later rank is not looked at."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    block, loss = x, x.sum()
    for hop in range(1, exchange.size):
        block = exchange.shift(block)
        source = exchange.rank - hop
        if source >= 0:
            loss = loss + (source + 1) * block.sum()
    exchange.join(loss).backward()
    return gradient(x)


def skip_gradient(rank: int, size: int) -> float:
    return 1.0 + (size - 1 - rank) * (rank + 1)


CASES: list[tuple[Callable[[Adapter], list[float]], Callable[[int, int], float]]] = [
    (detached_loss, lambda r, n: 0.0 if (r + 1) % n == 0 else 1.0),
    (frozen_input, lambda r, n: 0.0 if r == 0 else 1.0),
    (
        unused_outputs,
        lambda r, n: (0.0 if (r + 1) % n == 0 else 1.0) + (0.0 if (r + 2) % n == 0 else 10.0),
    ),
    (causal_skip, skip_gradient),
]


@pytest.mark.parametrize(("program", "expected"), CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_rank_dependent_graphs_neither_hang_nor_give_wrong_gradients(
    world: World,
    size: int,
    program: Callable[[Adapter], list[float]],
    expected: Callable[[int, int], float],
) -> None:
    assert world(program, size) == [[expected(r, size)] * 2 for r in range(size)]


def legal(adapter: Adapter) -> list[float]:
    """Everything that must raise no alarm, one after the other."""
    exchange, other = Exchange(Ring, adapter), Exchange(Ring, adapter, name="other")
    x = leaf(exchange.rank)
    # several forwards before one backward
    total = exchange.shift(x).sum() + exchange.shift(2 * x).sum()
    exchange.join(total).backward()
    exchange.mark_step(0)
    # gradient accumulation, without join, everything used
    for _ in range(2):
        exchange.shift(x).sum().backward()
        exchange.check_backward()
    # several losses, each joined where it is computed
    first = exchange.join(exchange.shift(x).sum())
    second = exchange.join(exchange.shift(x, -1).sum())
    first.backward()
    exchange.check_backward()
    second.backward()
    exchange.mark_step(1)
    # metrics under grad: a chain of which nothing runs, before, beside and after the backward
    exchange.shift(x)
    exchange.mark_step(2)
    loss = exchange.shift(x).sum()
    exchange.shift(x.detach())
    loss.backward()
    exchange.check_backward()
    exchange.shift(x)
    exchange.mark_step(3)
    # two Exchanges in one graph share the group's chain
    both = (
        other.shift(exchange.shift(x)).sum() + other.exchange(to_left=x, to_right=x).from_left.sum()
    )
    other.join(both).backward()
    exchange.mark_step(4)
    other.mark_step(4)
    # several backwards over one graph
    kept = exchange.join(exchange.shift(x).sum())
    kept.backward(retain_graph=True)
    kept.backward()
    exchange.mark_step(5)
    # no_grad and inference_mode: no chain at all
    with torch.no_grad():
        assert exchange.join(exchange.shift(x).sum()).grad_fn is None
    with torch.inference_mode():
        assert exchange.shift(x).is_inference()
    exchange.mark_step(6)
    exchange.close()
    return gradient(x)


@pytest.mark.parametrize("size", SIZES)
def test_legal_code_raises_no_alarm(world: World, size: int) -> None:
    assert world(legal, size) == [[3.0 + 2 + 2 + 1 + 2 + 2] * 2] * size


def left_out(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    used = exchange.shift(x)
    exchange.shift(3 * x, -1)
    used.sum().backward()
    try:
        exchange.mark_step()
    except DeadExchange as error:
        exchange.mark_step()  # said once
        return str(error)
    return "no alarm"


@pytest.mark.parametrize("size", SIZES)
def test_an_exchange_whose_backward_did_not_run_is_named(world: World, size: int) -> None:
    """On every rank alike, and also on one: the mistake shows on a laptop."""
    for text in world(left_out, size):
        assert "the backward of shift(offset=-1, axis='ring') at" in text
        assert "test_chain.py:" in text
        assert "join(loss)" in text


def missing_join(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    first, second = exchange.shift(x), exchange.shift(3 * x, -1)
    loss = first.sum() if exchange.rank == 0 else first.sum() + second.sum()
    try:
        loss.backward()
    except ExchangeMismatch as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_missing_join_is_named_on_the_rank_that_made_it(size: int) -> None:
    culprit, *others = simulate(size, missing_join)
    assert "This rank never ran the backward of shift(offset=-1, axis='ring')" in culprit
    assert all("rank 0 never ran the backward of exchange #2" in text for text in others)
    assert not any("This rank never ran" in text for text in others)


def one_rank_without_grad(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    with torch.set_grad_enabled(exchange.rank != 1):
        exchange.shift(leaf(exchange.rank))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_grad_on_one_rank_is_named_as_a_mismatch(size: int) -> None:
    with pytest.raises(ExchangeMismatch, match="rank 1 under no_grad"):
        simulate(size, one_rank_without_grad)


def penalty_first(adapter: Adapter) -> list[float]:
    """A gradient taken with create_graph, then one more exchange: join ties both all the same."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    first = exchange.shift(x)
    torch.autograd.grad((first**2).sum(), x, create_graph=True)
    second = exchange.shift(3 * x, -1)
    loss = second.sum() if exchange.rank == 0 else second.sum() + 10 * first.sum()
    exchange.join(loss).backward()
    exchange.mark_step()
    return gradient(x)


@pytest.mark.parametrize("size", SIZES)
def test_a_gradient_taken_for_a_penalty_does_not_cut_the_chain(world: World, size: int) -> None:
    expected = [[3.0 if (r + 1) % size == 0 else 13.0] * 2 for r in range(size)]
    assert world(penalty_first, size) == expected


def two_losses_over_one_chain(adapter: Adapter) -> list[str]:
    """Documented: losses that are backpropagated one by one are joined where they are computed."""
    exchange = Exchange(Ring, adapter)
    x = leaf(exchange.rank)
    first, second = exchange.shift(x).sum(), exchange.shift(x * 2).sum()
    first.backward()
    with pytest.raises(ExchangeError, match="must not share a chain") as caught:
        second.backward()
    texts = [str(caught.value)]
    first, second = exchange.shift(x).sum(), exchange.shift(x * 2).sum()
    first.backward(retain_graph=True)
    second.backward()
    exchange.mark_step()
    return texts


@pytest.mark.parametrize("size", SIZES)
def test_two_losses_over_one_chain_are_told_to_join(world: World, size: int) -> None:
    for (text,) in world(two_losses_over_one_chain, size):
        assert "test_chain.py:" in text
        assert "join(loss)" in text


def endless_metrics(adapter: Adapter) -> None:
    exchange = Exchange(Ring, adapter)
    x = leaf(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(WARN_AT + 1):
            exchange.shift(x)
    assert [w.filename.rsplit("/", 1)[-1] for w in caught] == ["test_chain.py"]
    assert "torch.no_grad()" in str(caught[0].message)


def test_a_chain_that_never_ends_is_warned_of_once() -> None:
    simulate(1, endless_metrics)
