"""Ring attention: the keys and values of all ranks visit the queries, with a causal mask.

Three ways to write it, against torch's attention over the whole sequence in one process.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from collectives import Adapter, Exchange, Ring
from tests.support.worlds import World

LENGTH, WIDTH = 12, 4  # of the whole sequence; of a head

Carry = tuple[Tensor, Tensor]
KeyValue = tuple[Tensor, Tensor]


def whole() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, LENGTH, WIDTH)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(3)]


def attend(
    rank: int, source: int, carry: Carry | None, block: KeyValue, query: Tensor, causal: bool
) -> Carry | None:
    """Return the attention so far, and the logarithm of what it was divided by."""
    if causal and source > rank:
        return carry  # every key there comes after every query here
    key, value = block
    scores = query @ key.transpose(-1, -2) * WIDTH**-0.5
    if causal and source == rank:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weight = scores.logsumexp(-1, keepdim=True)
    out = (scores - weight).exp() @ value
    if carry is None:
        return out, weight
    total = torch.logaddexp(carry[1], weight)
    return carry[0] * (carry[1] - total).exp() + out * (weight - total).exp(), total


def by_pass(exchange: Exchange, block: KeyValue, query: Tensor, causal: bool) -> Tensor:
    carry: Carry | None = None
    for source, visiting in exchange.ring_pass(block):
        carry = attend(exchange.rank, source, carry, visiting, query, causal)
    assert carry is not None
    return exchange.join(carry[0])


def by_scan(exchange: Exchange, block: KeyValue, query: Tensor, causal: bool) -> Tensor:
    def step(source: int, carry: Carry, block: KeyValue, query: Tensor) -> Carry:
        return attend(exchange.rank, source, carry, block, query, causal) or carry

    nothing = torch.full((*query.shape[:-1], 1), -torch.inf, dtype=query.dtype)
    out, _ = exchange.ring_scan(step, (torch.zeros_like(query), nothing), block, query)
    return out


WAYS = {"pass": by_pass, "scan": by_scan, "open": by_pass}


def on_ranks(adapter: Adapter, way: str, causal: bool) -> list[Tensor]:
    periodic = way != "open"  # without wrap-around only earlier blocks come: the mask, block-wise
    exchange = Exchange(lambda size: Ring(size, periodic=periodic), adapter)
    rows = LENGTH // exchange.size
    mine = slice(exchange.rank * rows, (exchange.rank + 1) * rows)
    query, key, value = (x[:, mine].clone().requires_grad_() for x in whole())
    out = WAYS[way](exchange, (key, value), query, causal)
    out.square().sum().backward()
    exchange.check_backward()
    return [out.detach(), *(x.grad for x in (query, key, value) if x.grad is not None)]


def in_one_process(causal: bool) -> list[Tensor]:
    query, key, value = (x.requires_grad_() for x in whole())
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in (query, key, value) if x.grad is not None)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("way", "causal"),
    [("pass", False), ("pass", True), ("scan", False), ("scan", True), ("open", True)],
)
def test_ring_attention_equals_attention_in_one_process(
    world: World, size: int, way: str, causal: bool
) -> None:
    parts = world(on_ranks, size, way, causal)
    for got, wanted in zip(zip(*parts, strict=True), in_one_process(causal), strict=True):
        torch.testing.assert_close(torch.cat(got, dim=1), wanted, rtol=1e-11, atol=1e-11)
