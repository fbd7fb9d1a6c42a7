"""How a tree is built takes part in matching, where a mistake would go unnoticed."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeMismatch
from collectives.testing import simulate
from collectives.trees import flatten, in_words
from tests.support.worlds import SIZES, World


class Pair(NamedTuple):
    first: Tensor
    second: object


@dataclasses.dataclass
class Batch:
    x: Tensor
    more: object


X = torch.ones(2)

WORDS: list[tuple[object, str]] = [
    (X, ""),
    ([X, X], "list([*, *])"),
    ((X, [X, (X,)]), "tuple([*, list([*, tuple([*])])])"),
    ({"b": X, "a": [X, None]}, "{'a': list([*, None]), 'b': *}"),
    (OrderedDict(q=X), "OrderedDict{'q': *}"),
    (Pair(X, {"*": X}), "Pair([*, {'*': *}])"),
    (Batch(X, {"k": X}), "Batch(x=*, more={'k': *})"),
    ({torch.float32: X, (1, "x"): X}, "{torch.float32: *, (1, 'x'): *}"),
]


@pytest.mark.parametrize(("tree", "words"), WORDS)
def test_a_tree_is_put_into_words(tree: object, words: str) -> None:
    assert in_words(flatten(tree, "shift")[1]) == words


class Key:
    """Its repr holds an address, which differs from process to process."""


def test_words_hold_no_address_and_do_not_grow_without_bound() -> None:
    assert " at 0x" not in in_words(flatten({Key(): X}, "shift")[1])
    many, more = (dict.fromkeys(range(n), X) for n in (1000, 1001))
    words = [in_words(flatten(tree, "shift")[1]) for tree in (many, more)]
    assert words[0] != words[1]
    assert max(map(len, words)) < 300


DIFFERENT: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "list / tuple": (lambda: [X, X], lambda: (X, X)),
    "keys": (lambda: {"key": X, "value": X}, lambda: {"keys": X, "values": X}),
    "nesting": (lambda: [X, [X]], lambda: [[X], X]),
    "large tensors": (lambda: {"a": torch.ones(40_000)}, lambda: {"b": torch.ones(40_000)}),
}


def shifted(adapter: Adapter, name: str) -> None:
    exchange = Exchange(Ring, adapter)
    exchange.shift(DIFFERENT[name][0]())  # the call of one tree is not taken for the other's
    exchange.shift(DIFFERENT[name][exchange.rank % 2]())


@pytest.mark.parametrize("name", DIFFERENT)
def test_trees_that_are_built_differently_are_a_mismatch(name: str) -> None:
    with pytest.raises(ExchangeMismatch, match=r"tensors: .* as .* / .* as ") as caught:
        simulate(2, shifted, name)
    for make in DIFFERENT[name]:
        assert f"as {in_words(flatten(make(), '')[1])}" in str(caught.value)


def on_ranks(adapter: Adapter, verify: str) -> str:
    exchange = Exchange(Ring, adapter, verify=verify)  # type: ignore[arg-type]
    with pytest.raises(ExchangeMismatch) as caught:
        exchange.shift({"kv"[exchange.rank]: X})
    return str(caught.value)


def test_the_watchdog_shows_both_trees(rank_pool: object) -> None:
    for text in World("gloo", rank_pool)(on_ranks, 2, "auto"):  # type: ignore[arg-type]
        assert "(float32[2]) as {'k': *}" in text
        assert "(float32[2]) as {'v': *}" in text


def test_headers_compare_them_before_anything_of_the_payload(rank_pool: object) -> None:
    for text in World("gloo", rank_pool)(on_ranks, 2, "always"):  # type: ignore[arg-type]
        assert "what it sends (1 tensor) is not what is awaited here" in text


def built_by_like(adapter: Adapter) -> bool:
    """What arrives is built as ``like=`` says, and that is what its sender must have sent."""
    exchange = Exchange(Ring, adapter)
    odd = exchange.rank % 2 == 1
    mine: object = {"x": X} if odd else [X, X]
    if exchange.size % 2 == 1:
        return exchange.shift(mine, offset=0) is not None
    arrived = exchange.shift(mine, like=[X, X] if odd else {"x": X})
    return isinstance(arrived, list if odd else dict)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_may_send_different_trees_where_like_says_so(world: World, size: int) -> None:
    assert all(world(built_by_like, size))


def in_any_order(adapter: Adapter) -> list[str]:
    exchange = Exchange(Ring, adapter)
    names = ["b", "a"] if exchange.rank else ["a", "b"]
    return list(exchange.shift(dict.fromkeys(names, X)))


@pytest.mark.parametrize("size", SIZES)
def test_the_order_of_keys_does_not_matter(world: World, size: int) -> None:
    expected = [["b", "a"] if rank else ["a", "b"] for rank in range(size)]
    assert world(in_any_order, size) == expected
