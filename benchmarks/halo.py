"""Halo exchange on a 2 x 2 mesh of one host, against gathering the slabs over gloo.

Run it with ``python -m benchmarks.halo``; ``--quick`` for a first look.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Mesh

from .command import command_line, finish, new_report
from .contest import Contestants, Referee
from .ranks import run_ranks
from .report import Measurement, Target

__all__ = ["main"]

SIDE, CHANNELS = 512, 16  # rows and columns of a shard
MESH = Mesh((2, 2), axes=("y", "x"))
DIMS = {0: "y", 1: "x"}
LIMIT = 300.0  # seconds

GATHER, AGAIN = "all_to_all of slabs + cat", "all_to_all of slabs + cat again (A/A)"
IN_PLACE, OUT, NEW = (
    "collectives, interior in place",
    "collectives, out=",
    "collectives, new tensor",
)
TARGETS = (
    Target("halos into a padded array: faster than gathering", "halo", IN_PLACE, GATHER, 8.0),
    Target("halos around a new tensor: faster than gathering", "halo", NEW, GATHER, 1.0),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = command_line("benchmarks.halo", __doc__).parse_args(arguments)
    report = new_report(options, TARGETS)
    program = functools.partial(_on_a_mesh, report.rounds, quick=options.quick)
    for measurement in run_ranks(MESH.size, program, LIMIT):
        report.add(measurement)
    return finish(report, options)


def _on_a_mesh(rounds: int, *, quick: bool) -> Iterator[Measurement]:
    """Run on each rank, in its own process."""
    control = dist.new_group()
    exchange = Exchange(MESH, RawDDPAdapter())
    generator = torch.Generator().manual_seed(exchange.rank)
    x = torch.randn(SIDE, SIDE, CHANNELS, generator=generator)
    buffer = torch.empty(SIDE + 2, SIDE + 2, CHANNELS)
    interior = buffer[1:-1, 1:-1]
    interior.copy_(x)
    gather = functools.partial(gathered, x, line_groups(), exchange.rank)
    ours = functools.partial(exchange.halo_exchange, dims=DIMS)
    contestants: Contestants = {
        GATHER: gather,
        AGAIN: functools.partial(gather),
        IN_PLACE: functools.partial(ours, interior, out=buffer),
        OUT: functools.partial(ours, x, out=torch.empty_like(buffer)),
        NEW: functools.partial(ours, x),
    }
    with torch.no_grad():
        expected = gather()
        for name, contestant in contestants.items():
            if not torch.equal(contestant(), expected):  # type: ignore[arg-type]
                raise RuntimeError(f"{name}: wrong halos on rank {exchange.rank}")
        samples = Referee(rounds, slot=0.1 if quick else 0.3, control=control).race(contestants)
    title = f"Halos of width 1 around {SIDE} x {SIDE} x {CHANNELS}, 2 x 2 ranks, no grad"
    yield Measurement("halo", title, GATHER, samples)


def line_groups() -> Mapping[tuple[str, int], dist.ProcessGroup]:
    """Return the group of the line through each rank along each axis; every rank calls it."""
    groups = {}
    for axis, rank in itertools.product(MESH.axes, range(MESH.size)):
        line = MESH.along(axis, rank)
        if rank == line[0]:
            group = dist.new_group(list(line))
            groups.update({(axis, member): group for member in line})
    return groups


def gathered(x: Tensor, groups: Mapping[tuple[str, int], dist.ProcessGroup], rank: int) -> Tensor:
    """Exchange halos as it is often written: slabs through all_to_all, then concatenation."""
    for dim, axis in DIMS.items():
        line = MESH.along(axis, rank)
        here = line.index(rank)
        shape = list(x.shape)
        shape[dim] = 1
        slabs = [
            x.narrow(dim, 0 if there < here else x.shape[dim] - 1, 1).flatten()
            if abs(there - here) == 1
            else x.new_empty(0)
            for there in range(len(line))
        ]
        counts = [slab.numel() for slab in slabs]
        received = x.new_empty(sum(counts))
        dist.all_to_all_single(received, torch.cat(slabs), counts, counts, groups[axis, rank])
        came = received.split(counts)
        zeros = x.new_zeros(shape)
        left = came[here - 1].view(shape) if here > 0 else zeros
        right = came[here + 1].view(shape) if here + 1 < len(line) else zeros
        x = torch.cat([left, x, right], dim)
    return x


if __name__ == "__main__":
    sys.exit(main())
