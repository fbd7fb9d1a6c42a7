"""C: autograd on ranks whose graphs differ. See README.md for the entries and public reports."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation
from collectives.testing.pool import RankPool
from tests.support import plain
from tests.support.worlds import SIZES, World

TAGS = pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])
EVERY_SIZE = pytest.mark.parametrize("size", SIZES)


def leaf(value: float = 1.0) -> Tensor:
    return torch.full((2,), value, dtype=torch.float64, requires_grad=True)


def gradient(tensor: Tensor) -> float:
    """Return the one value of a gradient that is the same everywhere."""
    assert tensor.grad is not None
    (value,) = set(tensor.grad.tolist())
    return float(value)


def by_default(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x, y = leaf(), leaf()
    (exchange.shift(x) * (exchange.rank + 1)).sum().backward()
    received = exchange.exchange(to_left=2 * y, to_right=None)
    (received.from_right * (exchange.rank + 1)).sum().backward()
    with torch.no_grad():
        assert not exchange.shift(x).requires_grad
    assert not exchange.shift(x.detach()).detach().requires_grad
    return [gradient(x), gradient(y)]


@EVERY_SIZE
def test_gradients_flow_by_default_and_are_cut_by_no_grad(world: World, size: int) -> None:
    """C39: gradient dropped. pytorch/pytorch#121587, pytorch/pytorch#152127,
    pytorch/pytorch#152131, Lightning-AI/pytorch-lightning#4725, ai2cm/ace#995,
    mlfoundations/open_clip#618."""
    expected = [[(r + 1) % size + 1.0, 2 * ((r - 1) % size + 1.0)] for r in range(size)]
    assert world(by_default, size) == expected


@pytest.mark.ranks(2)
def test_the_plain_form_drops_gradients_without_a_word() -> None:
    """C39, control."""
    x = leaf()
    assert not plain.shift(x).requires_grad
    assert not plain.shift(2 * x).requires_grad


def one_side_used(adapter: Adapter, *, left_on_0: bool) -> list[float]:
    exchange = Exchange(Ring, adapter)
    a, b = leaf(), leaf()
    received = exchange.exchange(to_left=a, to_right=b)
    used = received.from_left if left_on_0 and exchange.rank == 0 else received.from_right
    (used * (exchange.rank + 1)).sum().backward()
    return [gradient(a), gradient(b)]


@EVERY_SIZE
def test_an_output_that_nobody_uses_gives_zeros_not_none(world: World, size: int) -> None:
    """C41: one of two outputs unused (no public report)."""
    everywhere = world(one_side_used_everywhere, size)
    assert everywhere == [[(r - 1) % size + 1.0, 0.0] for r in range(size)]
    mixed = world(another_side_on_0, size)
    for rank, (to_left, to_right) in enumerate(mixed):
        left, right = (rank - 1) % size, (rank + 1) % size
        assert to_left == (0 if left == 0 else left + 1)
        assert to_right == (1 if right == 0 else 0)


def one_side_used_everywhere(adapter: Adapter) -> list[float]:
    return one_side_used(adapter, left_on_0=False)


def another_side_on_0(adapter: Adapter) -> list[float]:
    return one_side_used(adapter, left_on_0=True)


def no_output_used_on_0(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    a, b = leaf(), leaf()
    from_left, from_right = exchange.exchange(to_left=a, to_right=b)
    weight = exchange.rank + 1
    loss = (
        7 * a.sum() if exchange.rank == 0 else weight * (from_left + from_right).sum() + 0 * b.sum()
    )
    exchange.join(loss).backward()
    return [gradient(a), gradient(b)]


@EVERY_SIZE
def test_a_rank_that_uses_no_output_takes_part_through_join(world: World, size: int) -> None:
    """C42: no output used on one rank. Lightning-AI/pytorch-lightning#12190,
    pytorch/pytorch#152827, pytorch/pytorch#182182, ISEEKYAN/Megatron-LM#209."""

    def sent_back(by: int) -> int:
        return 0 if by == 0 else by + 1

    for rank, (to_left, to_right) in enumerate(world(no_output_used_on_0, size)):
        assert to_left == sent_back((rank - 1) % size) + (7 if rank == 0 else 0)
        assert to_right == sent_back((rank + 1) % size)


@TAGS
def test_a_rank_that_uses_no_output_and_does_not_join_is_named(tags: bool) -> None:
    """C42: instead of a timeout on the others."""

    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        x = leaf()
        arrived = exchange.shift(x)
        (x if exchange.rank == 0 else arrived).sum().backward()

    with pytest.raises(ExchangeMismatch, match=r"rank 0 never ran the backward of exchange #1"):
        Simulation(3, tags=tags).run(program)


def hard_select(adapter: Adapter, *, join: bool) -> list[float | None]:
    """Take one of two terms, by the data: another one on each rank."""
    exchange = Exchange(Ring, adapter, timeout=2 if not join else 60)
    u, v = leaf(), leaf()
    moved_u, moved_v = exchange.shift(u), exchange.shift(v)
    weight = exchange.rank + 1
    loss = (10 * weight * moved_u if exchange.rank == 0 else 1000 * weight * moved_v).sum()
    (exchange.join(loss) if join else loss).backward()
    return [None if x.grad is None else gradient(x) for x in (u, v)]


def hard_select_joined(adapter: Adapter) -> list[float | None]:
    return hard_select(adapter, join=True)


@EVERY_SIZE
def test_each_rank_may_take_another_term_of_the_loss(world: World, size: int) -> None:
    """C45: ranks use different loss terms. Haochen-Wang409/U2PL#16."""
    for rank, (of_u, of_v) in enumerate(world(hard_select_joined, size)):
        right = (rank + 1) % size
        assert of_u == (10 if right == 0 else 0)
        assert of_v == (0 if right == 0 else 1000 * (right + 1))


@TAGS
def test_another_term_on_each_rank_without_join_is_named(tags: bool) -> None:
    """C45: never a gradient that belongs to the other term."""
    with pytest.raises(ExchangeMismatch, match=r"join\(loss\)|differ in"):
        Simulation(2, tags=tags).run(lambda adapter: hard_select(adapter, join=False))


def error_of_hard_select() -> str:
    dist.barrier()  # the deadline is short, and holds for the forward too
    with pytest.raises(ExchangeMismatch) as caught:
        hard_select(RawDDPAdapter(), join=False)
    return str(caught.value)


def test_over_gloo_the_rank_that_left_a_term_out_names_it(rank_pool: RankPool) -> None:
    """C45: the mistake is found where it was made, from what this rank knows."""
    errors = rank_pool.run(error_of_hard_select, size=2)
    rank_pool.discard()
    assert "This rank never ran the backward of shift(offset=1, axis='ring') at" in errors[0]
    assert "never ran" not in errors[1]
    assert all("rank 1 waits in exchange #2 shift" in error for error in errors)


@pytest.mark.ranks(2)
def test_the_plain_form_gives_the_gradient_of_the_other_term(rank: int) -> None:
    """C45, control."""
    u, v = leaf(), leaf()
    moved_u, moved_v = plain.Shifted.apply(u), plain.Shifted.apply(v)  # type: ignore[no-untyped-call]
    (moved_u * 10 if rank == 0 else moved_v * 2000).sum().backward()
    assert gradient(u if rank == 0 else v) == (2000 if rank == 0 else 10)  # should be 0 and 0


@EVERY_SIZE
def test_random_graphs_that_differ_by_rank_have_the_gradient_of_one_process(
    world: World, size: int
) -> None:
    """C49: order inside one backward() (no public report)."""
    by_rank = world(random_gradients, size)
    for seed in range(GRAPHS):
        leaves = build(seed, size, range(size), lambda ts, d: {r: ts[(r - d) % size] for r in ts})
        for rank, found in enumerate(by_rank):
            assert found[seed] == pytest.approx(gradient(leaves[rank]), rel=1e-12)


GRAPHS = 12
ByRank = dict[int, Tensor]
Move = Callable[[ByRank, int], ByRank]


def random_gradients(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank

    def move(tensors: ByRank, offset: int) -> ByRank:
        return {rank: exchange.shift(tensors[rank], offset)}

    def graph(seed: int) -> float:
        return gradient(build(seed, exchange.size, [rank], move, exchange.join)[rank])

    return [graph(seed) for seed in range(GRAPHS)]


def build(
    seed: int,
    size: int,
    ranks: Iterable[int],
    move: Move,
    join: Callable[[Tensor], Tensor] = lambda loss: loss,
) -> ByRank:
    """Build the graphs of some ranks, and return their leaves with gradients.

    All ranks exchange alike; what they send on, detach, overwrite in place and put into their loss
    differs. With all ranks at once and a ``move`` by indexing this is the single-process form.
    """
    rng = random.Random(seed)
    ranks = list(ranks)
    leaves = {r: leaf(1.0 + r) for r in ranks}
    pool = [leaves]
    for _ in range(6):
        moved = move(pool[rng.randrange(len(pool))], rng.choice((-1, 1, 2)))
        ways = [rng.randrange(4) for _ in range(size)]
        pool.append({r: _used(ways[r], moved[r], leaves[r]) for r in ranks})
    taken = [[rng.random() < 0.5 for _ in pool] for _ in range(size)]
    zero = torch.zeros((), dtype=torch.float64)
    losses = {
        r: zero + sum((r + 1.0) * t[r].sum() for t, use in zip(pool, taken[r], strict=True) if use)
        + 0 * leaves[r].sum()
        for r in ranks
    }  # fmt: skip
    join(sum(losses.values(), zero)).backward()
    return leaves


def _used(way: int, moved: Tensor, mine: Tensor) -> Tensor:
    if way == 0:
        return moved.detach() + mine
    if way == 1:
        return mine * 3  # what arrived is not used at all
    return (moved * 0.5).add_(mine) if way == 2 else moved.view(2, 1).squeeze(1) * mine.detach()


def second_order(adapter: Adapter) -> list[list[float]]:
    """L = sum over ranks of w * shift(x^3)^2 = sum of w(right) x^6."""
    exchange = Exchange(Ring, adapter)
    x = leaf(1.0 + exchange.rank)
    weight = exchange.rank + 2.0
    loss = (weight * exchange.shift(x**3) ** 2).sum()
    (first,) = torch.autograd.grad(exchange.join(loss), x, create_graph=True)
    (second,) = torch.autograd.grad(exchange.join(first.sum()), x)
    return [first.tolist(), second.tolist()]


@EVERY_SIZE
def test_the_second_derivative_is_right(world: World, size: int) -> None:
    """C51: double backward. pytorch/pytorch#159959, deepinv/deepinv#1088."""
    for rank, (first, second) in enumerate(world(second_order, size)):
        x, weight = 1.0 + rank, (rank + 1) % size + 2.0
        assert first == pytest.approx([6 * weight * x**5] * 2, rel=1e-12)
        assert second == pytest.approx([30 * weight * x**4] * 2, rel=1e-12)
