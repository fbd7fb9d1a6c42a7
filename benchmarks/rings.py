"""Ring loops of two ranks of one host, against loops around the copied function over gloo.

Run it with ``python -m benchmarks.rings`` (or ``make bench-rings``); ``--quick`` for a first look.

Two jobs. A contrastive step (SigLIP): forward and backward of the loss over all blocks. And a pass
of large blocks with a matmul for each, which the next block's way should hide.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

from . import plain
from .command import command_line, finish, new_report
from .contest import Contestants, Referee
from .ranks import run_ranks
from .report import Measurement, Target

__all__ = ["main"]

ROWS, WIDTH = 256, 512  # of each rank
BLOCK, COLUMNS = (4096, 1024), 64  # 16 MiB, times a matrix
PASSES = 4
LIMIT = 300.0  # seconds

COPIED, AGAIN = "loop of the copied function", "loop of the copied function again (A/A)"
FOLD, KEPT, PASS = "ring_fold", "ring_fold, keep=2", "ring_pass"
TARGETS = (
    Target("SigLIP step in constant memory: as fast as the loop", "siglip", KEPT, COPIED, 1.0),
    Target("blocks of 16 MiB with a matmul: faster than the loop", "pass", PASS, COPIED, 1.3),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = command_line("benchmarks.rings", __doc__).parse_args(arguments)
    report = new_report(options, TARGETS)
    program = functools.partial(_between_ranks, report.rounds, quick=options.quick)
    for measurement in run_ranks(2, program, LIMIT):
        report.add(measurement)
    return finish(report, options)


def _between_ranks(rounds: int, *, quick: bool) -> Iterator[Measurement]:
    """Run on each rank, in its own process."""
    referee = Referee(rounds, slot=0.1 if quick else 0.4, control=dist.new_group())
    exchange = Exchange(Ring, RawDDPAdapter())
    yield measure_siglip(exchange, referee)
    yield measure_pass(exchange, referee)


def measure_siglip(exchange: Exchange, referee: Referee) -> Measurement:
    """Forward and backward of the sigmoid loss over all pairs."""
    rank, peer = exchange.rank, 1 - exchange.rank
    generator = torch.Generator().manual_seed(rank)
    image, text = (
        functional.normalize(x, dim=-1).requires_grad_()
        for x in torch.randn(2, ROWS, WIDTH, generator=generator)
    )
    signs = {True: 2 * torch.eye(ROWS) - 1, False: -torch.ones(ROWS, ROWS)}

    def pairs(source: int, text: Tensor, image: Tensor) -> Tensor:
        logits = 10 * image @ text.T - 10
        return -functional.logsigmoid(signs[source == rank] * logits).sum() / ROWS

    def loop() -> Tensor:
        visiting: Tensor = plain.Neighbour.apply(peer, peer, text)  # type: ignore[no-untyped-call]
        return pairs(rank, text, image) + pairs(peer, visiting, image)

    def fold(keep: int) -> Tensor:
        return exchange.ring_fold(pairs, text, image, keep=keep)

    contestants: Contestants = {
        COPIED: functools.partial(_step, loop, image, text),
        AGAIN: functools.partial(_step, loop, image, text),
        FOLD: functools.partial(_step, functools.partial(fold, 0), image, text),
        KEPT: functools.partial(_step, functools.partial(fold, 2), image, text),
    }
    expected = _step(loop, image, text)
    for contestant in contestants.values():
        torch.testing.assert_close(contestant(), expected)  # the same gradients
    samples = referee.race(contestants)
    title = f"Forward and backward of a SigLIP loss, {ROWS} x {WIDTH} a rank, 2 ranks"
    return Measurement("siglip", title, COPIED, samples)


def _step(loss: Callable[[], Tensor], image: Tensor, text: Tensor) -> list[Tensor]:
    image.grad = text.grad = None
    loss().backward()
    return [x.grad for x in (image, text) if x.grad is not None]


def measure_pass(exchange: Exchange, referee: Referee) -> Measurement:
    """Some passes in which each rank multiplies both blocks, for about as long as one travels."""
    rank, peer = exchange.rank, 1 - exchange.rank
    generator = torch.Generator().manual_seed(rank)
    block = torch.randn(BLOCK, generator=generator)
    weight = torch.randn(BLOCK[1], COLUMNS, generator=generator)

    def loop() -> Tensor:
        total = torch.zeros(BLOCK[0], COLUMNS)
        for _ in range(PASSES):
            total += block @ weight
            total += plain.neighbour_exchange(peer, peer, block) @ weight
        return total

    def ring_pass() -> Tensor:
        total = torch.zeros(BLOCK[0], COLUMNS)
        for _ in range(PASSES):
            for _, visiting in exchange.ring_pass(block):
                total += visiting @ weight
        return total

    contestants: Contestants = {COPIED: loop, AGAIN: functools.partial(loop), PASS: ring_pass}
    with torch.no_grad():
        torch.testing.assert_close(ring_pass(), loop())
        samples = referee.race(contestants)
    title = f"{PASSES} passes of a block of 16 MiB with a matmul for each block, 2 ranks, no grad"
    return Measurement("pass", title, COPIED, samples)


if __name__ == "__main__":
    sys.exit(main())
