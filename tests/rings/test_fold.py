"""ring_fold: the sum over ring_pass, values and gradients, with nothing kept of the terms."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from collectives import Adapter, Exchange, Ring
from collectives.routes import Shapes
from collectives.testing import check_adjoint
from tests.support.worlds import SIZES, World

from .cases import CASES, Case, block, sources


class Outcome(NamedTuple):
    value: Tensor
    block: Tensor
    weight: Tensor
    scale: Tensor


def weight(rank: int) -> Tensor:
    return torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4) * (rank + 1)


def term(source: int, block: Tensor, weight: Tensor, scale: Tensor) -> dict[str, Tensor]:
    hidden = torch.tanh(block @ weight)
    return {"sum": (source + 1) * scale * hidden.sum(0), "largest": hidden.amax()}


def loss_of(value: dict[str, Tensor], rank: int) -> Tensor:
    return ((rank + 1) * value["sum"].square()).sum() + value["largest"]


def folded(adapter: Adapter, case: Case, how: str, skips: bool) -> Outcome:
    topology, axis = case
    exchange = Exchange(topology, adapter)
    rank = exchange.rank
    mine, own = block(rank).requires_grad_(), weight(rank).requires_grad_()
    scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def by_closure(source: int, block: Tensor, weight: Tensor) -> dict[str, Tensor] | None:
        if skips and source > rank:
            return None
        return term(source, block, weight, scale)

    value: dict[str, Tensor] | None = None
    if how != "pass":
        keep = int(how)
        value = exchange.ring_fold(by_closure, mine, own, axis=axis, params=scale, keep=keep)
        loss_of(value, rank).backward()
    else:
        for source, visiting in exchange.ring_pass(mine, axis=axis):
            one = by_closure(source, visiting, own)
            if one is not None:
                value = one if value is None else {k: value[k] + one[k] for k in one}
        assert value is not None
        exchange.join(loss_of(value, rank)).backward()
    exchange.check_backward()
    assert mine.grad is not None
    assert own.grad is not None
    assert scale.grad is not None
    flat = torch.cat([value["sum"].detach(), value["largest"].detach()[None]])
    return Outcome(flat, mine.grad, own.grad, scale.grad)


def in_one_process(case: Case, *, skips: bool) -> list[Outcome]:
    size = case[0].size
    blocks = [block(rank).requires_grad_() for rank in range(size)]
    weights = [weight(rank).requires_grad_() for rank in range(size)]
    scales = [torch.tensor(0.5, dtype=torch.float64, requires_grad=True) for _ in range(size)]
    values = []
    for rank in range(size):
        used = [s for s in sources(case, rank) if not (skips and s > rank)]
        terms = [term(s, blocks[s], weights[rank], scales[rank]) for s in used]
        values.append({k: torch.stack([t[k] for t in terms]).sum(0) for k in terms[0]})
    torch.stack([loss_of(value, rank) for rank, value in enumerate(values)]).sum().backward()
    grads = [[x.grad for x in row] for row in (blocks, weights, scales)]
    flat = [torch.cat([v["sum"], v["largest"][None]]).detach() for v in values]
    return [Outcome(*row) for row in zip(flat, *grads, strict=True)]


@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("how", ["0", "1", "2", "9", "pass"])  # terms that a fold keeps
@pytest.mark.parametrize("skips", [False, True])
def test_fold_and_pass_equal_one_process(world: World, case: Case, how: str, skips: bool) -> None:
    expected = in_one_process(case, skips=skips)
    for outcome, reference in zip(
        world(folded, case[0].size, case, how, skips), expected, strict=True
    ):
        for got, wanted in zip(outcome, reference, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def random_terms(adapter: Adapter, keep: int) -> float:
    torch.manual_seed(3)
    exchange = Exchange(Ring, adapter)

    def masked(source: int, block: Tensor, factor: Tensor) -> Tensor:
        del source
        return factor * nn.functional.dropout(block, 0.5)

    factor = torch.rand(3, 2, dtype=torch.float64)
    return check_adjoint(
        exchange, lambda x: exchange.ring_fold(masked, x, factor, keep=keep), block(exchange.rank)
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keep", [0, 1, 2])
def test_backward_draws_the_same_random_numbers(world: World, size: int, keep: int) -> None:
    assert max(world(random_terms, size, keep)) <= 1e-12


def untouched(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(4, requires_grad=True)
    loss = exchange.ring_fold(lambda _, b: nn.functional.dropout(b).sum(), x)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    loss.backward()
    return torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("size", SIZES)
def test_backward_leaves_the_random_generator_as_it_was(rank_pool: object, size: int) -> None:
    assert all(World("gloo", rank_pool)(untouched, size))  # type: ignore[arg-type]


def in_autocast(adapter: Adapter) -> list[torch.dtype]:
    exchange = Exchange(Ring, adapter)
    layer = nn.Linear(4, 4)
    seen: list[torch.dtype] = []

    def term(_: int, block: Tensor) -> Tensor:
        hidden: Tensor = layer(block)
        seen.append(hidden.dtype)
        return hidden.float().sum()

    x = torch.randn(2, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = exchange.ring_fold(term, x, params=layer)
        outside = layer(x).float().sum()
    (grad,) = torch.autograd.grad(outside, layer.weight, allow_unused=True)
    assert grad is not None, "the cast was taken from a cache without a graph"
    loss.backward()
    return seen


@pytest.mark.parametrize("size", SIZES)
def test_backward_runs_under_the_autocast_of_forward(world: World, size: int) -> None:
    for seen in world(in_autocast, size):
        assert seen == [torch.bfloat16] * (2 * size)


def several_times(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):  # accumulation over two steps
        exchange.ring_fold(lambda s, b: (s + 1) * b.square().sum(), x).backward()
    assert x.grad is not None
    loss = exchange.ring_fold(lambda s, b: (s + 1) * b.square().sum(), x)
    (once,) = torch.autograd.grad(loss, x, retain_graph=True)
    (twice,) = torch.autograd.grad(loss, x)
    assert torch.equal(once, twice)
    with pytest.raises(RuntimeError, match="has run before and its graph is gone"):
        torch.autograd.grad(loss, x)
    return [x.grad[0].item(), once[0].item()]


@pytest.mark.parametrize("size", SIZES)
def test_accumulation_and_a_kept_graph_work(world: World, size: int) -> None:
    per_step = [2.0 * size * (rank + 1) for rank in range(size)]
    assert world(several_times, size) == [[2 * g, g] for g in per_step]


def mixed(adapter: Adapter) -> list[object]:
    """Rank 0 needs no gradient, the last rank does not use the value; ints travel too."""
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    x = torch.ones(2, requires_grad=rank > 0)
    first = exchange.shift(x)  # tied to the loss by the fold
    total = exchange.ring_fold(lambda _, b: b[0].sum() * b[1], (x, torch.tensor(rank + 1)))
    loss = torch.zeros((), requires_grad=True) * 1 if rank == size - 1 else total
    exchange.join(loss).backward()
    exchange.check_backward()
    del first
    return [total.item(), None if x.grad is None else x.grad.tolist()]


@pytest.mark.parametrize("size", SIZES)
def test_ranks_without_a_gradient_or_a_loss_take_part(world: World, size: int) -> None:
    total = 2.0 * sum(range(1, size + 1))
    expected = [[total, None]]
    expected += [[total, [(size - 1.0) * (rank + 1)] * 2] for rank in range(1, size)]  # type: ignore[list-item]
    assert world(mixed, size) == expected


def without_grad(adapter: Adapter) -> tuple[float, bool, bool]:
    exchange = Exchange(Ring, adapter)
    layer = nn.Linear(2, 1)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    with torch.no_grad():  # nothing is differentiated, so nothing is lost
        plain = exchange.ring_fold(lambda _, b: layer(b).sum(), torch.ones(2))
    with torch.inference_mode():
        inside = exchange.ring_fold(lambda _, b: layer(b).sum(), torch.ones(2))
    return plain.item(), plain.requires_grad, inside.is_inference()


@pytest.mark.parametrize("size", SIZES)
def test_without_grad_there_is_no_backward(world: World, size: int) -> None:
    assert world(without_grad, size) == [(2.0 * size, False, True)] * size


ROWS = (2, 2, 3, 1, 3)  # of each rank: what one sends does not tell what it gets


def uneven(adapter: Adapter, shapes: Shapes) -> list[object]:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(ROWS[exchange.rank], requires_grad=True)
    carry = torch.zeros(())
    for _ in range(2):
        total = exchange.ring_fold(lambda s, b: (s + 1) * b.sum(), x, shapes=shapes)
        carry = exchange.ring_scan(lambda s, c, b: c + (s + 1) * b.sum(), total, x, shapes=shapes)
        carry.backward()
    assert x.grad is not None
    return [carry.item(), x.grad.tolist()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shapes", ["discover", "once"])
def test_blocks_of_different_shapes_are_discovered(world: World, size: int, shapes: Shapes) -> None:
    total = 2.0 * sum((s + 1) * rows for s, rows in enumerate(ROWS[:size]))
    expected = [[total, [4.0 * size * (s + 1)] * ROWS[s]] for s in range(size)]
    assert world(uneven, size, shapes) == expected
