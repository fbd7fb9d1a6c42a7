"""Ranks with different ``verify=`` are told so, by name, wherever anybody watches."""

from __future__ import annotations

import re

import pytest
import torch

from collectives import Adapter, Exchange, Ring
from collectives.errors import ContextError, ExchangeMismatch, ExchangeTimeout
from collectives.signature import Verify
from collectives.testing import simulate
from tests.support.worlds import World

MODES: list[tuple[Verify, Verify]] = [("auto", "always"), ("off", "auto"), ("always", "off")]
EVERY_PAIR = pytest.mark.parametrize("modes", MODES)


def in_simulator(adapter: Adapter, modes: tuple[Verify, Verify]) -> None:
    mine = modes[adapter.context().rank]
    Exchange(Ring, adapter, verify=mine).shift(torch.ones(2))


@EVERY_PAIR
def test_the_simulator_names_both(modes: tuple[Verify, Verify]) -> None:
    expected = f"rank 0 / rank 1 differ in verify: {modes[0]} / {modes[1]}"
    with pytest.raises(ExchangeMismatch, match=expected):
        simulate(2, in_simulator, modes)


def at_first(adapter: Adapter, modes: tuple[Verify, Verify]) -> str:
    rank = adapter.context().rank
    exchange = Exchange(Ring, adapter, verify=modes[rank], timeout=2)
    kind = ExchangeTimeout if modes[rank] == "off" else ContextError
    with pytest.raises(kind) as caught:
        exchange.shift(torch.ones(2))
    return str(caught.value)


@EVERY_PAIR
def test_the_greeting_names_both_and_an_unwatched_rank_is_asked(
    rank_pool: object, modes: tuple[Verify, Verify]
) -> None:
    texts = World("gloo", rank_pool)(at_first, 2, modes)  # type: ignore[arg-type]
    for rank, text in enumerate(texts):
        if modes[rank] == "off":
            assert "This rank has verify='off': do all of them?" in text
        else:
            assert f"verify {modes[1 - rank]!r} there, {modes[rank]!r} here" in text
            assert "make the Exchange with the same verify= on all ranks" in text


def later(adapter: Adapter, modes: tuple[Verify, Verify]) -> str:
    Exchange(Ring, adapter).shift(torch.ones(1))  # all agree so far
    exchange = Exchange(Ring, adapter, verify=modes[adapter.context().rank])
    with pytest.raises(ExchangeMismatch) as caught:
        exchange.shift(torch.ones(2))
    return str(caught.value)


@EVERY_PAIR
def test_the_watchdog_names_both_in_a_later_exchange(
    rank_pool: object, modes: tuple[Verify, Verify]
) -> None:
    both = re.compile(rf"verify: (?:{modes[0]} / {modes[1]} |{modes[1]} / {modes[0]} )")
    for text in World("gloo", rank_pool)(later, 2, modes):  # type: ignore[arg-type]
        assert both.search(text), text


def unwatched(adapter: Adapter) -> list[float]:
    first = Exchange(Ring, adapter, verify="off")
    watched = Exchange(Ring, adapter, name="watched")
    mine = torch.tensor([float(first.rank)])
    return [e.shift(mine).item() for e in (first, watched, first)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_exchanges_that_are_watched_and_that_are_not_share_a_group(world: World, size: int) -> None:
    assert world(unwatched, size) == [[float((rank - 1) % size)] * 3 for rank in range(size)]
