"""What a fold must not be given, or given only by name: refused, never a lost gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from collectives import Adapter, Exchange, Ring
from collectives.circuit import captured
from collectives.errors import ArgumentError, CapturedTensorError, ExchangeError
from tests.support.worlds import SIZES, World

Operation = Callable[..., Tensor]


def refused(exchange: Exchange, fn: Callable[..., object], **options: object) -> str:
    try:
        exchange.ring_fold(fn, torch.ones(3, requires_grad=True), **options)  # type: ignore[arg-type]
    except ArgumentError as error:
        exchange.check_backward()  # nothing is left behind that would have to run
        if "wrote to" not in str(error):
            assert exchange.shift(torch.tensor(7)).item() == 7
        return f"{type(error).__name__}: {error}"
    return "no error"


def leaf(adapter: Adapter) -> str:
    w = torch.ones(3, requires_grad=True)
    return refused(Exchange(Ring, adapter), lambda _, b: b * w)


def computed(adapter: Adapter) -> str:
    w = torch.ones(4, 3, requires_grad=True) * 2
    return refused(Exchange(Ring, adapter), lambda _, b: w @ b)


def module(adapter: Adapter) -> str:
    layer = nn.Linear(3, 5, bias=False)
    return refused(Exchange(Ring, adapter), lambda _, b: layer(b))


def returned(adapter: Adapter) -> str:
    w = torch.ones(6, requires_grad=True)
    return refused(Exchange(Ring, adapter), lambda *_: w)


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        (leaf, "a tensor of shape (3,), torch.float32,"),
        (computed, "a tensor that was computed outside of shape (4, 3), torch.float32,"),
        (module, "a tensor of shape (5, 3), torch.float32,"),
        (returned, "a tensor of shape (6,), torch.float32,"),
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_a_captured_tensor_that_requires_grad_is_refused(
    world: World, program: Callable[[Adapter], str], shown: str, size: int
) -> None:
    for rank, text in enumerate(world(program, size)):
        assert text == (
            f"CapturedTensorError: ring_fold(axis='ring'): fn uses {shown} that requires grad and"
            f" was not passed (rank {rank} of {size}): its gradient would be lost. Give it to fn as"
            " an argument, or name it, or the module that it belongs to, in params=; or detach() it"
        )


def named(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    leaf = torch.ones(3, requires_grad=True)
    base = torch.ones(3, requires_grad=True)
    computed = base * 2
    layer = nn.Linear(3, 1, bias=False)
    frozen = nn.Linear(3, 1).requires_grad_(False)
    constant = torch.ones(3)

    def term(_: int, b: Tensor) -> Tensor:
        total: Tensor = layer(b).sum() + 0 * frozen(b).sum()
        return total + (b * leaf * computed * constant).sum()

    params: list[Tensor | nn.Module] = [leaf, computed, layer, frozen]
    exchange.ring_fold(term, torch.ones(3), params=params).backward()
    grads = [leaf.grad, base.grad, layer.weight.grad]
    return [float(g.flatten()[0]) for g in grads if g is not None]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_named_gets_its_gradient(world: World, size: int) -> None:
    assert world(named, size) == [[2.0 * size, 2.0 * size, float(size)]] * size


def captured_later(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    w = torch.ones(3, requires_grad=True)
    rank = exchange.rank
    x = torch.ones(3, requires_grad=True)
    loss = exchange.ring_fold(lambda s, b: b.sum() if s == rank else (b * w).sum(), x)
    try:
        loss.backward()
    except CapturedTensorError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("size", [2, 3])
def test_a_tensor_that_only_later_terms_capture_is_refused_in_backward(
    world: World, size: int
) -> None:
    assert all("shape (3,)" in text for text in world(captured_later, size))


def wrong(adapter: Adapter) -> list[str]:
    exchange = Exchange(Ring, adapter)
    texts = [
        refused(exchange, lambda _, b: b, params=[3]),
        refused(exchange, lambda *_: None),
        refused(exchange, lambda *_: 3.0),
        refused(exchange, lambda _, b: exchange.shift(b.detach())),
        refused(exchange, lambda _, b: b.detach().mul_(2)),
    ]
    if exchange.size > 1:  # what it wrote to was on its way
        with pytest.raises(ExchangeError, match="was modified in place between start and wait"):
            exchange.shift(torch.tensor(7))
    with pytest.raises(ArgumentError, match="every leaf of the tree must be a tensor"):
        exchange.ring_fold(lambda _, b, __: b, torch.ones(3), 4)
    return texts


@pytest.mark.parametrize("size", SIZES)
def test_functions_that_cannot_be_run_again_are_refused_at_every_size(
    world: World, size: int
) -> None:
    for texts in world(wrong, size):
        for text, part in zip(
            texts,
            (
                "must hold tensors and modules, got int",
                "returned None for every block",
                "what fn returns",
                "fn must not exchange",
                "wrote to a tensor that it was given",
            ),
            strict=True,
        ):
            assert part in text


def changing(adapter: Adapter, kind: str) -> str:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank

    def fn(source: int, block: Tensor) -> object:
        if source == rank:
            return block
        return block[:1] if kind == "shape" else (block, block)

    return refused(exchange, fn)


@pytest.mark.parametrize("kind", ["shape", "tree"])
@pytest.mark.parametrize("size", [2, 3])
def test_terms_that_are_not_alike_are_refused(world: World, size: int, kind: str) -> None:
    text = {"shape": "must return the same shapes", "tree": "must return the same tree"}[kind]
    assert all(text in got for got in world(changing, size, kind))


def raising(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)

    def fn(source: int, block: Tensor) -> Tensor:
        if exchange.rank == 0:
            raise ZeroDivisionError
        return block.sum() * (source + 1)

    try:
        total = exchange.ring_fold(fn, torch.ones(1)).item()
    except ZeroDivisionError:
        total = -1.0
    exchange.check_backward()
    return total + exchange.shift(torch.tensor(0.0)).item()


@pytest.mark.parametrize("size", SIZES)
def test_an_error_on_one_rank_takes_no_block_from_the_others(world: World, size: int) -> None:
    assert world(raising, size) == [-1.0, *[size * (size + 1) / 2] * (size - 1)]


def twice(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    loss = exchange.ring_fold(lambda _, b: b.square().sum(), x)
    with pytest.raises(ArgumentError, match="cannot be differentiated twice") as caught:
        torch.autograd.grad(loss, x, create_graph=True)
    return str(caught.value)


@pytest.mark.parametrize("size", SIZES)
def test_double_backward_is_refused_with_the_way_out(world: World, size: int) -> None:
    assert all("write the loop with ring_pass" in text for text in world(twice, size))


def one_without_grad(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    with torch.set_grad_enabled(exchange.rank != 0):
        try:
            exchange.ring_fold(lambda _, b: b.sum(), x)
        except ExchangeError as error:
            return str(error)
    return "no error"


def test_grad_mode_on_some_ranks_only_is_a_mismatch(world: World) -> None:
    for text in world(one_without_grad, 3):
        assert "ring_fold(axis='ring', no_grad)" in text or world.name == "batches"
        assert text != "no error"


def test_the_number_of_the_next_node_is_known_without_the_function_of_newer_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older nodes have lower numbers, and the next one has not."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(2):
        before = x * 2
        since = captured.clock()
        after = x * 2
        assert before.grad_fn is not None
        assert after.grad_fn is not None
        assert before.grad_fn._sequence_nr() < since <= after.grad_fn._sequence_nr()
        monkeypatch.setattr(captured, "_peek", None)
