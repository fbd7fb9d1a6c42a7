"""Where the caller's graph ends, Dynamo compiles the operations and no other frame of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo import eval_frame
from torch.utils.checkpoint import checkpoint

import collectives
from collectives import Adapter, Exchange, Ring, even_steps
from tests.support.compiling import leaf
from tests.support.worlds import World

cell = pytest.mark.cell("torch.compile, fullgraph", "raw")
slow = pytest.mark.matrix
PACKAGE = Path(collectives.__file__).parent
# Of the operations, and of what stands in for them in graphs.
MEANT = {
    PACKAGE / name for name in ("moves.py", "graphed.py", "compiled/eager.py", "compiled/traced.py")
}
Step = Callable[[Exchange, Tensor], Tensor]


def a_loop(e: Exchange, x: Tensor) -> Tensor:
    loss = torch.zeros((), dtype=x.dtype)
    for _, block in e.ring_pass(x):
        loss = loss + (x * block).sum()
    return e.join(loss)


def a_loop_that_looks_at_the_source(e: Exchange, x: Tensor) -> Tensor:
    loss = x.sum() * 0
    for source, block in e.ring_pass(x, prefetch=2):
        loss = loss + ((x * block).sum() * source if source != e.rank else x.sum())
    return e.join(loss)


def a_loop_that_is_left(e: Exchange, x: Tensor) -> Tensor:
    loss = x.sum() * 0
    with contextlib.closing(e.ring_pass(x)) as blocks:
        for source, block in blocks:
            loss = loss + (x * block).sum()
            if source != e.rank:
                break
    return e.join(loss)


def a_loop_in_a_checkpoint(e: Exchange, x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return sum((x * other).sum() for _, other in e.ring_pass(x))  # type: ignore[return-value]

    return e.join(checkpoint(block, x, use_reentrant=False))


def one_block(e: Exchange, x: Tensor) -> Tensor:
    blocks = e.ring_pass(x)
    _, block = next(blocks)
    blocks.close()
    return e.join((block * x).sum())


def a_fold(e: Exchange, x: Tensor) -> Tensor:
    def term(source: int, block: Tensor, x: Tensor) -> Tensor:
        return ((source + 1) * x * block).sum()

    return e.ring_fold(term, x, x, keep=1)


def a_scan(e: Exchange, x: Tensor) -> Tensor:
    return e.ring_scan(lambda _, carry, block, x: carry + (x * block).sum(), x.sum() * 0, x, x)


def started(e: Exchange, x: Tensor) -> Tensor:
    shift, halo = e.start_shift(x), e.start_halo_exchange(x, {0: "ring"})
    loss = x.sin().sum()
    for k in range(3):
        loss = loss + (e.start_exchange(to_left=x * k, to_right=x).wait().from_right * x).sum()
    return e.join(loss + (shift.wait() * x).sum() + halo.wait().square().sum())


def steps_of_even_length(e: Exchange, x: Tensor) -> Tensor:
    loss = x.sum() * 0
    for batches in (range(3 + e.rank), iter(range(3 + e.rank))):
        for k in even_steps(batches, e):
            loss = loss + (e.shift(x * k) * x).sum()
    return e.join(loss)


def sizes_that_are_asked_for(e: Exchange, x: Tensor) -> Tensor:
    loss = e.halo_exchange(x, {0: "ring"}).square().sum() + e.all_gather(x).sum()
    for k in range(3):
        loss = loss + (e.shift(x, k, shapes="discover") * x).sum()
    return e.join(loss)


def gossip(e: Exchange, x: Tensor) -> Tensor:
    mine = x.detach().clone()
    e.mark_step(1)
    e.gossip_([mine], 0)
    return e.join((e.shift(x) * mine).sum())


def backward_within(e: Exchange, x: Tensor) -> Tensor:
    loss = a_fold(e, x) + (e.start_shift(x).wait() * x).sum() + (e.shift(x) * x).sum()
    for _, block in e.ring_pass(x):
        loss = loss + (x * block).sum()
    e.join(loss + e.halo_exchange(x, {0: "ring"}).square().sum()).backward()
    assert x.grad is not None
    return (x * x.grad.detach()).sum()


STEPS = [
    a_loop,
    a_loop_that_looks_at_the_source,
    a_loop_that_is_left,
    a_loop_in_a_checkpoint,
    one_block,
    a_fold,
    a_scan,
    started,
    steps_of_even_length,
    sizes_that_are_asked_for,
    gossip,
    backward_within,
]


def frames_of_ours() -> set[str]:
    """Return what Dynamo has taken for code to compile: "name file:line"."""
    return {
        frame
        for frame in eval_frame.dynamo_tls.traced_frame_infos
        if PACKAGE in Path(frame.partition(" ")[2].rpartition(":")[0]).parents
    }


def as_in_eager_mode(adapter: Adapter, backend: str, step: Step) -> list[str]:
    exchange = Exchange(Ring, adapter, timeout=20)
    torch.compiler.reset()
    eval_frame.dynamo_tls.traced_frame_infos.clear()
    function = torch.compile(step, backend=backend)
    for rows in (4, 5, 6):
        x, y = leaf(exchange.rank, rows, 2), leaf(exchange.rank, rows, 2)
        expected = step(exchange, y)
        expected.backward()
        found = function(exchange, x)
        found.backward()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-12, atol=1e-12)
    assert eval_frame.dynamo_tls.traced_frame_infos
    return [
        frame
        for frame in frames_of_ours()
        if Path(frame.partition(" ")[2].rpartition(":")[0]) not in MEANT
    ]


@cell
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=slow)])
@pytest.mark.parametrize("size", [pytest.param(2, marks=slow), 3, pytest.param(5, marks=slow)])
@pytest.mark.parametrize("step", [s if s is a_loop else pytest.param(s, marks=slow) for s in STEPS])
def test_where_a_graph_ends_values_and_gradients_are_those_of_eager_mode(
    ranks: World, step: Step, size: int, backend: str
) -> None:
    assert ranks(as_in_eager_mode, size, backend, step, timeout=240) == [[]] * size


def met_by_dynamo_first(adapter: Adapter) -> list[str]:
    """What eager mode has begun goes on in compiled code, in which nothing was exchanged yet."""
    exchange = Exchange(Ring, adapter, timeout=20)

    def go_on(x: Tensor, blocks: object, pending: object, loss: Tensor) -> Tensor:
        loss.backward()
        for _, block in blocks:  # type: ignore[attr-defined]
            x = x + block
        return x + pending.wait()  # type: ignore[attr-defined,no-any-return]

    torch.compiler.reset()
    eval_frame.dynamo_tls.traced_frame_infos.clear()
    x = leaf(exchange.rank, 3)
    loss = exchange.join((exchange.shift(x) * x).sum())
    with torch.no_grad():
        expected = x + sum(block for _, block in exchange.ring_pass(x)) + exchange.shift(x)
        blocks, pending = exchange.ring_pass(x), exchange.start_shift(x)
    with torch.no_grad():
        found = torch.compile(go_on, backend="eager")(x, blocks, pending, loss)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    return sorted(frames_of_ours())


@cell
@slow
def test_what_was_begun_in_eager_mode_goes_on_in_compiled_code(ranks: World) -> None:
    assert ranks(met_by_dynamo_first, 3) == [[]] * 3
