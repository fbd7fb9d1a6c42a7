"""What autograd keeps of a SigLIP loss, for 1, 2, 4 and 8 ranks.

Run it with ``python -m benchmarks.ring_memory``. The ranks are simulated: bytes are counted, not
timed. ``ring_fold`` keeps the same for all sizes (``keep=2`` keeps two terms, where there are two);
loops keep every block that came, and what the loss of each pair of blocks needs.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
from collections.abc import Callable
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional

from collectives import Adapter, Exchange, Ring
from collectives.testing import Simulation

__all__ = ["main", "saved_bytes"]

SIZES = (1, 2, 4, 8)
ROWS, WIDTH = 8, 4  # of each rank


class _Kept:
    """A tensor that autograd keeps, for as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def main(arguments: list[str] | None = None) -> int:
    """Count, print, and return the exit code: 1 if the bytes of the fold are not all equal."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    print(f"bytes that autograd keeps on one rank: {ROWS} rows of {WIDTH} float32 a rank")
    print(f"{'ranks':>16}" + "".join(f"{size:>8}" for size in SIZES))
    for way in WAYS:
        counted = [saved_bytes(way, size) for size in SIZES]
        print(f"{way:>16}" + "".join(f"{count:>8}" for count in counted))
    return 0 if len({saved_bytes("ring_fold", size) for size in SIZES}) == 1 else 1


def saved_bytes(way: str, size: int) -> int:
    """Return what autograd keeps on each rank between forward and backward.

    Args:
        way: One of ``WAYS``.
        size: Number of ranks.
    """

    def program(adapter: Adapter) -> int:
        exchange = Exchange(Ring, adapter)
        image, text = torch.randn(2, ROWS, WIDTH, requires_grad=True).unbind()
        kept: WeakSet[_Kept] = WeakSet()

        def pack(x: Tensor) -> _Kept:
            one = _Kept(x)
            kept.add(one)
            return one

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
            loss = WAYS[way](exchange, image, text)
        gc.collect()
        memory = {one.tensor.data_ptr(): one.tensor for one in kept}  # what is kept twice, is once
        counted = sum(x.numel() * x.element_size() for x in memory.values())
        loss.backward()
        return counted

    counts = set(Simulation(size).run(program))
    assert len(counts) == 1, f"the ranks keep {counts}"
    return counts.pop()


def pair_loss(source: int, text: Tensor, image: Tensor, rank: int) -> Tensor:
    """Return the sigmoid loss of all pairs of two blocks."""
    logits = 10 * image @ text.T - 10
    sign = 2 * torch.eye(ROWS) - 1 if source == rank else -torch.ones(ROWS, ROWS)
    return -functional.logsigmoid(sign * logits).sum() / ROWS


def _by_fold(exchange: Exchange, image: Tensor, text: Tensor, keep: int = 0) -> Tensor:
    rank = exchange.rank
    return exchange.ring_fold(
        lambda s, text, image: pair_loss(s, text, image, rank), text, image, keep=keep
    )


def _by_pass(exchange: Exchange, image: Tensor, text: Tensor) -> Tensor:
    blocks = exchange.ring_pass(text)
    losses = [pair_loss(source, block, image, exchange.rank) for source, block in blocks]
    return exchange.join(torch.stack(losses).sum())


def _by_shifts(exchange: Exchange, image: Tensor, text: Tensor) -> Tensor:
    loss = pair_loss(exchange.rank, text, image, exchange.rank)
    for hop in range(1, exchange.size):
        text = exchange.shift(text)
        source = (exchange.rank - hop) % exchange.size
        loss = loss + pair_loss(source, text, image, exchange.rank)
    return exchange.join(loss)


WAYS: dict[str, Callable[[Exchange, Tensor, Tensor], Tensor]] = {
    "ring_fold": _by_fold,
    "keep=1": functools.partial(_by_fold, keep=1),
    "keep=2": functools.partial(_by_fold, keep=2),
    "ring_pass": _by_pass,
    "loop of shifts": _by_shifts,
}

if __name__ == "__main__":
    sys.exit(main())
