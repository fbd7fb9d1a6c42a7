"""A user's plain script: checked by mypy --strict, never run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from typing_extensions import assert_type

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter


def script() -> None:
    with RawDDPAdapter(timeout=60.0, backend="gloo") as adapter:
        assert_type(adapter, RawDDPAdapter)
        exchange = Exchange(Ring, adapter)
        assert_type(exchange.shift(torch.ones(1)), torch.Tensor)


def loops(exchange: Exchange, x: torch.Tensor) -> None:
    def term(source: int, block: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        return None if source else (block, block)

    def step(source: int, carry: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        return carry + source * block

    for source, block in exchange.ring_pass({"x": x}):
        assert_type(source, int)
        assert_type(block, dict[str, torch.Tensor])
    assert_type(exchange.ring_fold(term, x), tuple[torch.Tensor, torch.Tensor])
    assert_type(exchange.ring_scan(step, x, x, params=torch.nn.Linear(1, 1)), torch.Tensor)
    exchange.ring_fold(term, x, params="w")  # type: ignore[arg-type]


def spawned(rank: int, size: int) -> None:
    with RawDDPAdapter(rank=rank, size=size, device=torch.device("cpu")) as adapter:
        Exchange(Ring(size), adapter)


def existing(group: dist.ProcessGroup) -> Adapter:
    RawDDPAdapter(device="cpu", alone=True)
    return RawDDPAdapter(group)


def refused() -> None:
    RawDDPAdapter([0, 1])  # type: ignore[arg-type]
    RawDDPAdapter(None, "cpu")  # type: ignore[call-arg]
    RawDDPAdapter(size="2")  # type: ignore[arg-type]
