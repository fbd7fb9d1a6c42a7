"""Calls that repeat: found again at once, and never where the tensors only look alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functionalize, vmap

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.chain import Record, calling_place
from collectives.lookup import plain_key
from tests.support.worlds import SIZES, World

CPU = torch.device("cpu")


class Mine(Tensor):
    pass


def carried_out(transform: object) -> Tensor:
    """A tensor whose transform has ended: still inside torch's wrapper."""
    carried: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        carried.append(x)
        return x

    transform(keep)(torch.ones(1, 2))  # type: ignore[operator]
    return carried[0]


NOT_PLAIN: dict[str, Callable[[], object]] = {
    "carried out of vmap": lambda: carried_out(vmap),
    "carried out of functionalize": lambda: carried_out(functionalize),
    "empty": lambda: torch.empty(0, 3),
    "a subclass": lambda: torch.ones(2).as_subclass(Mine),
    "a list": lambda: [torch.ones(2)],
    "nothing": lambda: None,
    "on another device": lambda: torch.ones(2, device="meta"),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "zeros without memory": lambda: torch._efficientzerotensor((2,)),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_no_plain_tensor_with_memory_has_no_plain_key(name: str) -> None:
    assert plain_key((torch.ones(2), torch.ones(2)), CPU) is not None
    assert plain_key((torch.ones(2), NOT_PLAIN[name]()), CPU) is None


def test_a_call_is_made_once_for_all_calls_like_it() -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    parameter = torch.nn.Parameter(torch.ones(3))
    for tree in (torch.ones(3), torch.ones(3), parameter, torch.ones(5)[:3]):
        exchange.shift(tree)
    (route,) = exchange._bound().routes.values()
    assert len(route.calls) == 1
    with torch.no_grad():
        exchange.shift(torch.ones(3))
    exchange.shift(torch.ones(3, dtype=torch.float64))
    exchange.shift(torch.ones(3, 1))
    assert len(route.calls) == 4


def alike(adapter: Adapter) -> list[list[float]]:
    exchange = Exchange(Ring, adapter)
    mine = torch.full((2, 2), float(exchange.rank))
    negative = torch._neg_view(-mine)  # a bit instead of the minus in memory
    out, gaps = torch.empty(2, 2), torch.empty(2, 4)[:, ::2]
    results = [
        exchange.shift(mine),
        exchange.shift(mine.t()),
        exchange.shift(negative),
        exchange.shift(mine[:1].expand(2, 2)),
        exchange.shift(mine, out=out),
        exchange.shift(mine, out=gaps),
        exchange.shift(mine, out=out),
    ]
    assert torch.equal(gaps, out)
    return [result.flatten().tolist() for result in results]


@pytest.mark.parametrize("size", SIZES)
def test_tensors_of_one_shape_arrive_whatever_their_memory(world: World, size: int) -> None:
    assert world(alike, size) == [[[float((r - 1) % size)] * 4] * 7 for r in range(size)]


def test_the_line_of_a_call_is_looked_up_when_it_is_read() -> None:
    record = Record("shift", calling_place(), wanted=True)
    code = test_the_line_of_a_call_is_looked_up_when_it_is_read.__code__
    assert record.where == f"{__file__}:{code.co_firstlineno + 1}"
    assert str(record) == f"shift at {record.where}"
