"""The error texts that the README shows are what the library says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ExchangeError
from collectives.testing.pool import RankPool

README = Path(__file__).parents[2] / "README.md"


def leave_out_a_step(exchange: Exchange) -> None:
    for step in range(5):
        exchange.mark_step(0, step)
        if (exchange.rank, step) != (2, 3):
            exchange.shift(torch.zeros(8, 512))


def raise_an_error(exchange: Exchange) -> None:
    with exchange:
        exchange.shift(torch.zeros(8, 512))
        if exchange.rank == 1:
            raise ValueError("batch 17 has no labels")
        exchange.exchange(to_left=torch.zeros(8, 512), to_right=torch.zeros(8, 512))


def stay_away(exchange: Exchange) -> None:
    exchange.shift(torch.zeros(8, 512))
    if exchange.rank == 2:
        time.sleep(4.0)
    else:
        exchange.exchange(to_left=torch.zeros(8, 512), to_right=torch.zeros(8, 512), timeout=2.0)


def error_of(program: Callable[[Exchange], None]) -> str:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv")
    try:
        program(exchange)
    except (ExchangeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


SHOWN = {
    "ExchangeMismatch": leave_out_a_step,
    "PeerLost": raise_an_error,
    "ExchangeTimeout": stay_away,
}


def masked(text: str) -> str:
    """Leave out what differs from run to run: numbers, and with them who was first to find it.

    On a loaded machine the other rank may not have been found waiting yet; then its line says
    "started", and not where.
    """
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r", [\w./-]+\.py:\d+", "", text)
    text = re.sub(r"\b(waits in|started|ran) exchange", "is in exchange", text)
    text = re.sub(r"\d+(\.\d+)?", "N", text)
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("kind", SHOWN)
def test_the_readme_shows_what_a_rank_really_says(rank_pool: RankPool, kind: str) -> None:
    errors = rank_pool.run(error_of, SHOWN[kind], size=3)
    rank_pool.discard()
    blocks = re.findall(r"```text\n(.*?)```", README.read_text(), re.DOTALL)
    shown = [block for block in blocks if block.startswith(kind)]
    assert len(shown) == 1, "\n".join(errors)
    assert masked(shown[0]) in map(masked, errors), "\n".join(errors)
