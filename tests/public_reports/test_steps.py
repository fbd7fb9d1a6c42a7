"""C: steps that ranks skip, repeat or leave by an exception. See README.md."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import Simulation
from collectives.testing.pool import RankPool, RanksFailedError
from tests.support import plain
from tests.support.worlds import SIZES, World

TAGS = pytest.mark.parametrize("tags", [True, False], ids=["tags", "no tags"])


def leaf() -> Tensor:
    return torch.ones(2, requires_grad=True)


def a_bad_batch_on_0(adapter: Adapter) -> list[list[float]]:
    exchange = Exchange(Ring, adapter)
    gradients = []
    for step in range(3):
        exchange.mark_step(0, step)
        x = leaf()
        arrived = exchange.shift(x)
        bad = step == 1 and exchange.rank == 0
        loss = torch.zeros(()) if bad else (arrived * (exchange.rank + 1)).sum()
        exchange.join(loss).backward()
        assert x.grad is not None
        gradients.append(x.grad.tolist())
    return gradients


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_with_a_bad_batch_skips_its_loss_and_stays_in_step(world: World, size: int) -> None:
    """C47: step skipped on one rank. Lightning-AI/pytorch-lightning#5243,
    Lightning-AI/pytorch-lightning#4956, Lightning-AI/pytorch-lightning#19918,
    Lightning-AI/pytorch-lightning#5359."""
    for rank, gradients in enumerate(world(a_bad_batch_on_0, size)):
        right = (rank + 1) % size
        of_step = [right + 1.0, 0.0 if right == 0 else right + 1.0, right + 1.0]
        assert gradients == [[g, g] for g in of_step]


@TAGS
def test_a_skipped_backward_does_not_meet_the_next_forward(tags: bool) -> None:
    """C47: the phase takes part in matching."""

    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        arrived = exchange.shift(leaf())
        if exchange.rank != 0:
            arrived.sum().backward()
        exchange.shift(leaf())

    with pytest.raises(ExchangeMismatch, match=r"rank 0 never ran|phase: forward / backward"):
        Simulation(2, tags=tags).run(program)


@TAGS
def test_ranks_out_of_step_are_named(tags: bool) -> None:
    """C47: a batch skipped as a whole; the step takes part in matching."""

    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        for step in range(3):
            if (exchange.rank, step) == (0, 1):
                continue
            exchange.mark_step(0, step)
            exchange.shift(torch.ones(1))

    with pytest.raises(ExchangeMismatch, match=r"step: \(0, [12]\) / \(0, [12]\)"):
        Simulation(2, tags=tags).run(program)


@pytest.mark.ranks(2)
def test_the_plain_form_takes_a_gradient_for_the_next_data(rank: int) -> None:
    """C47, control."""
    arrived = plain.Shifted.apply(leaf())  # type: ignore[no-untyped-call]
    if rank == 0:
        assert plain.shift(torch.full((2,), 7.0)).tolist() == [5.0, 6.0]  # rank 1's gradient
    else:
        (arrived * torch.tensor([5.0, 6.0])).sum().backward()


def a_hook_raises_on_0(adapter: Adapter) -> None:
    def fail(grad: Tensor) -> Tensor:
        raise ValueError(f"hook failed, having got {grad.tolist()}")

    exchange = Exchange(Ring, adapter, timeout=20)
    arrived = exchange.shift(leaf() * 1)
    if exchange.rank == 0:
        arrived.register_hook(fail)
    arrived.sum().backward()


def test_an_exception_in_backward_on_one_rank_is_what_is_raised() -> None:
    """C58: exception, or a repeated backward, on one rank (no public report)."""
    with pytest.raises(ValueError, match="hook failed"):
        Simulation(3).run(a_hook_raises_on_0)


def test_over_gloo_the_peers_of_a_rank_that_raised_end_at_once(rank_pool: RankPool) -> None:
    """C58: not at the deadline, which is 20 s here; the cause comes first."""
    with pytest.raises(RanksFailedError) as caught:
        rank_pool.run(lambda: a_hook_raises_on_0(RawDDPAdapter()), size=2, timeout=40)
    text = str(caught.value)
    assert "rank 0 of 2 failed first" in text
    assert "ValueError: hook failed" in text
    assert "rank 1 failed after it: collectives.errors.PeerLost" in text


@TAGS
def test_a_second_backward_on_one_rank_does_not_take_the_next_data(tags: bool) -> None:
    """C58: exchange number and phase take part in matching."""

    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        loss = exchange.shift(leaf()).sum()
        loss.backward(retain_graph=True)
        if exchange.rank == 0:
            loss.backward()
        exchange.shift(torch.ones(2))

    with pytest.raises(ExchangeMismatch, match=r"phase: (backward / forward|forward / backward)"):
        Simulation(2, tags=tags).run(program)


def twice_everywhere(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = leaf()
    loss = exchange.join((exchange.shift(x) * (exchange.rank + 1)).sum())
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad is not None
    gradient: list[float] = x.grad.tolist()
    return gradient


@pytest.mark.parametrize("size", SIZES)
def test_a_second_backward_on_all_ranks_is_legal(world: World, size: int) -> None:
    """C58: gradients are summed."""
    assert world(twice_everywhere, size) == [[2.0 * ((r + 1) % size + 1)] * 2 for r in range(size)]


@pytest.mark.ranks(2)
def test_the_plain_form_takes_the_next_data_for_a_gradient(rank: int) -> None:
    """C58, control."""
    x = leaf()
    loss = (plain.Shifted.apply(x) * 2).sum()  # type: ignore[no-untyped-call]
    if rank == 0:
        loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [7.0, 8.0]  # rank 1's data
    else:
        assert plain.shift(torch.tensor([7.0, 8.0])).tolist() == [2.0, 2.0]  # rank 0's gradient
