"""What it costs that no exchange is silently wrong or waits without an end.

Run it with ``python -m benchmarks.guard`` (or ``make bench-guard``): tags, watchdog, deadline and
flight record, against bare calls of the process group between the same two ranks over gloo. Thread
time is of the calling thread, processor time of all threads of a rank: gloo copies in a thread of
its own, and what takes its place between ranks of one host in the caller's, where it waits.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from typing import Literal

import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Received, Ring

from . import plain
from .command import command_line, finish, new_report
from .contest import Contestants, Referee
from .payload import check_received, payload
from .ranks import run_ranks
from .report import Measurement, Target

__all__ = ["main"]

Mode = Literal["off", "auto", "always"]

SIZES = {"4 B": 4, "64 KiB": 64 * 1024, "1 MiB": 1024 * 1024}
MODES: tuple[Mode, ...] = ("off", "auto", "always")
LIMIT = 300.0  # seconds for all measurements

BARE, AGAIN = "bare ProcessGroup calls", "bare ProcessGroup calls again (A/A)"
OVER_GLOO = 'collectives, verify="auto", over gloo'
ADDED = 15e-6  # seconds of the calling thread


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = command_line("benchmarks.guard", __doc__).parse_args(arguments)
    report = new_report(options, _targets())
    program = functools.partial(_between_ranks, report.rounds, quick=options.quick)
    for measurement in run_ranks(2, program, LIMIT):
        report.add(measurement)
    return finish(report, options)


def _targets() -> tuple[Target, ...]:
    return tuple(
        Target(f"added to an exchange of {size}", f"thread time {size}", _name("auto"), BARE, ADDED)
        for size in SIZES
    )


def _name(mode: Mode) -> str:
    return f'collectives, verify="{mode}"'


def _between_ranks(rounds: int, *, quick: bool) -> Iterator[Measurement]:
    """Run on each rank, in its own process."""
    referee = Referee(rounds, slot=0.02 if quick else 0.1, control=dist.new_group())
    # Each mode on a group of its own: those that share one share its guard.
    exchanges = {
        _name(mode): Exchange(Ring, RawDDPAdapter(dist.new_group()), verify=mode) for mode in MODES
    }
    exchanges[OVER_GLOO] = _over_gloo()
    for name, size in SIZES.items():
        with torch.no_grad():
            yield from _measure(exchanges, referee, name, size)


def _over_gloo() -> Exchange:
    """Return one whose messages go the same way as those of the bare calls."""
    exchange = Exchange(Ring, RawDDPAdapter(dist.new_group()))
    os.environ["COLLECTIVES_SAME_HOST"] = "off"
    exchange.shift(torch.zeros(1))  # here ranks agree on their ways
    del os.environ["COLLECTIVES_SAME_HOST"]
    return exchange


def _measure(
    exchanges: dict[str, Exchange], referee: Referee, name: str, size: int
) -> Iterator[Measurement]:
    """One tensor of ``size`` bytes to each side, into buffers that are kept."""
    rank = dist.get_rank()
    to_left, to_right = payload(rank, size // 4)
    bare = plain.bare_calls(plain.gloo_calls(), 1 - rank, to_left, to_right)
    contestants: Contestants = {
        BARE: bare,
        AGAIN: functools.partial(bare),
        **{
            way: functools.partial(
                exchange.exchange,
                to_left=to_left,
                to_right=to_right,
                out=Received(torch.empty_like(to_right), torch.empty_like(to_left)),
            )
            for way, exchange in exchanges.items()
        },
    }
    for exchange in exchanges.values():
        check_received(exchange, [exchange.exchange(to_left=to_left, to_right=to_right)])
    title = f"an exchange of {name} each way, out=, no grad"
    # gloo sends from whichever thread finds that it can, the caller's or its own: only both
    # figures together say what is added.
    for key, clock in (("thread", time.thread_time), ("processor", time.process_time)):
        samples = referee.spend(contestants, clock)
        yield Measurement(
            f"{key} time {name}", f"{key.capitalize()} time of {title}", BARE, samples, adds=True
        )
    yield Measurement(f"wall {name}", f"Duration of {title}", BARE, referee.race(contestants))


if __name__ == "__main__":
    sys.exit(main())
