"""Two-way exchange between two ranks of one host, against the copied function over gloo.

Run it with ``python -m benchmarks.exchange`` (or ``make bench``); ``--quick`` for a first look.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Received, Ring

from . import plain
from .command import command_line, finish, new_report
from .contest import Contestants, Referee, Samples, in_turn
from .imports import time_imports
from .nowhere import Nowhere, NowhereAdapter
from .payload import check_received, payload
from .ranks import run_ranks
from .report import Measurement, Report, Target

__all__ = ["main"]

KIB, MIB = 1024, 1024 * 1024
SIZES = {"4 B": 4, "64 KiB": 64 * KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
MANY, SMALL = 100, 4 * KIB
A_STEP = 16  # exchanges under grad between two cuts of the chain
LIMIT = 900.0  # seconds for all measurements between ranks

COPIED, AGAIN = "copied function", "copied function again (A/A)"
LOOP, LOOP_AGAIN, BATCH = "loop of the copied", "loop of the copied again (A/A)", "one batch of all"
BARE, BARE_AGAIN = "bare ProcessGroup calls", "bare ProcessGroup calls again (A/A)"
OURS, OURS_NEW = "collectives, out=", "collectives, new tensors"
TORCH, TORCH_AGAIN, BOTH = "import torch", "import torch again (A/A)", "import torch, collectives"

TARGETS = (
    *(
        Target(
            f"exchange of {size}: faster than the copied", f"exchange {size}", OURS, COPIED, least
        )
        for size, least in {"4 B": 1.3, "64 KiB": 1.3, "1 MiB": 1.8, "64 MiB": 2.0}.items()
    ),
    # Like for like: both of these make new tensors as well.
    Target("100 tensors: faster than a loop of the copied", "many", OURS_NEW, LOOP, 12.0),
    Target("100 tensors: faster than one batch of all", "many", OURS_NEW, BATCH, 6.0),
    *(
        Target(
            f"Python above the bare calls, {where}, {mode}",
            f"python, {where}, {mode}",
            OURS,
            BARE,
            most,
        )
        for where in ("between ranks", "nothing moved")
        for mode, most in {"no grad": 15e-6, "with grad": 35e-6}.items()
    ),
    Target("import collectives adds to import torch", "import", BOTH, TORCH, 0.2),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(arguments)
    report = new_report(options, TARGETS)
    program = functools.partial(
        _between_ranks, report.rounds, quick=options.quick, only=options.only
    )
    if not options.only or set(options.only) & {"exchange", "many", "python"}:
        for measurement in run_ranks(2, program, LIMIT):
            report.add(measurement)
    if not options.only or "import" in options.only:
        measure_import(report, report.rounds)
    return finish(report, options)


def _between_ranks(rounds: int, *, quick: bool, only: list[str]) -> Iterator[Measurement]:
    """Run on each rank, in its own process."""
    group = dist.new_group()
    referee = Referee(rounds, slot=0.02 if quick else 0.05, control=group)
    exchange = Exchange(Ring, RawDDPAdapter())
    if not only or "exchange" in only:
        for name, size in SIZES.items():
            if not quick or size <= MIB:
                yield measure_exchange(exchange, referee, name, size)
    if not only or "many" in only:
        yield measure_many(exchange, referee)
    if not only or "python" in only:
        yield from measure_python(exchange, plain.gloo_calls(), referee, "between ranks")
        nowhere = Nowhere(exchange.rank, exchange.size)
        alone = Exchange(Ring, NowhereAdapter(nowhere))
        yield from measure_python(alone, (nowhere.send, nowhere.recv), referee, "nothing moved")


def measure_exchange(exchange: Exchange, referee: Referee, name: str, size: int) -> Measurement:
    """One tensor to each side."""
    to_left, to_right = payload(exchange.rank, size // 4)
    peer = 1 - exchange.rank  # of two ranks: left and right
    out = Received(torch.empty_like(to_right), torch.empty_like(to_left))
    copied = functools.partial(plain.neighbour_exchange_bidir, peer, peer, to_left, to_right)
    ours = functools.partial(exchange.exchange, to_left=to_left, to_right=to_right)
    contestants: Contestants = {
        COPIED: copied,
        AGAIN: functools.partial(copied),
        BARE: plain.bare_calls(plain.gloo_calls(), peer, to_left, to_right),
        OURS: functools.partial(ours, out=out),
        OURS_NEW: ours,
    }
    with torch.no_grad():
        check_received(exchange, [ours()])
        samples = referee.race(contestants)
    title = f"Two-way exchange of {name} each way, no grad"
    return Measurement(f"exchange {name}", title, COPIED, samples)


def measure_many(exchange: Exchange, referee: Referee) -> Measurement:
    """Many small tensors to each side in one call."""
    pairs = [payload(exchange.rank, SMALL // 4) for _ in range(MANY)]
    to_left, to_right = [a for a, _ in pairs], [b for _, b in pairs]
    peer = 1 - exchange.rank  # of two ranks: left and right
    out = Received([x.clone() for x in to_right], [x.clone() for x in to_left])
    ours = functools.partial(exchange.exchange, to_left=to_left, to_right=to_right)

    def loop() -> list[tuple[Tensor, Tensor]]:
        return [plain.neighbour_exchange_bidir(peer, peer, a, b) for a, b in pairs]

    contestants: Contestants = {
        LOOP: loop,
        LOOP_AGAIN: functools.partial(loop),
        BATCH: functools.partial(plain.one_batch, peer, peer, to_left, to_right),
        OURS: functools.partial(ours, out=out),
        OURS_NEW: ours,
    }
    with torch.no_grad():
        received = ours()
        check_received(exchange, zip(received.from_left, received.from_right, strict=True))
        samples = referee.race(contestants)
    return Measurement("many", f"{MANY} tensors of 4 KiB each way in one call", LOOP, samples)


def measure_python(
    exchange: Exchange, calls: tuple[plain.Post, plain.Post], referee: Referee, where: str
) -> Iterator[Measurement]:
    """Processor time of the calling thread in an exchange of 4 B, without and with grad."""
    rank = exchange.rank
    to_left, to_right = payload(rank, 1)
    out = Received(torch.empty_like(to_right), torch.empty_like(to_left))
    bare = plain.bare_calls(calls, 1 - rank, to_left, to_right)
    for grad in (False, True):
        leftward, rightward = (x.clone().requires_grad_(grad) for x in (to_left, to_right))
        mode = "with grad" if grad else "no grad"

        calls_made = itertools.count(1)

        def ours(
            leftward: Tensor = leftward,
            rightward: Tensor = rightward,
            calls_made: Iterator[int] = calls_made,
        ) -> None:
            exchange.exchange(to_left=leftward, to_right=rightward, out=out)
            if leftward.requires_grad and next(calls_made) % A_STEP == 0:
                exchange.mark_step()  # cuts the chain, as join(loss) does in a training step

        contestants: Contestants = {BARE: bare, BARE_AGAIN: functools.partial(bare), OURS: ours}
        with torch.set_grad_enabled(grad):
            samples = referee.spend(contestants)
        title = f"Thread time of an exchange of 4 B each way, {where}, {mode}"
        yield Measurement(f"python, {where}, {mode}", title, BARE, samples, adds=True)


def measure_import(report: Report, rounds: int) -> None:
    """Seconds of the processor, since a busy machine changes them least."""
    samples: Samples = {TORCH: [], TORCH_AGAIN: [], BOTH: []}
    loaded: set[str] = set()
    for number in range(rounds):
        for name in in_turn(samples, number):
            took = time_imports(*(["collectives"] if name == BOTH else []))
            samples[name].append(took.seconds)
            if name == BOTH:
                loaded.update(took.frameworks)
    title = "Processor time of imports, each in a process of its own"
    report.add(Measurement("import", title, TORCH, samples, adds=True))
    report.claim("import collectives never imports Lightning", holds=not loaded)


def _parser() -> argparse.ArgumentParser:
    parser = command_line("benchmarks.exchange", __doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], choices=["exchange", "many", "python", "import"]
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
