"""How fast ranks agree without an all-reduce, against what the spectral gap predicts.

16 simulated ranks, no launcher. First they only average: the distance from their mean must shrink
by ``1 - topology.spectral_gap()`` with each step (each period of a schedule). Then each trains on
its own part of the data, with ``gossip_`` after each step, and all come close to what one process
finds that has all of the data.

Run: ``python -m examples.gossip``; writes ``demo-output/gossip.png``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from collectives import Adapter, Exchange, Graph, Mesh, Ring, Schedule
from collectives.testing import simulate
from collectives.topology import Topology

__all__ = ["TOPOLOGIES", "averaging", "main", "measured_factor", "predicted_factor", "training"]

SIZE, STEPS = 16, 40
TOPOLOGIES: dict[str, Topology] = {
    "ring": Ring(SIZE),
    "torus 4 x 4": Mesh((4, 4), periodic=True),
    "exponential": Graph.exponential(SIZE),
    "ring, then star": Schedule.cycle([Ring(SIZE), Graph.star(SIZE)]),
    "one-peer exponential": Schedule.one_peer_exponential(SIZE),
}
_ROUNDING = 1e-13
_FEATURES = 5


def period_of(topology: Topology) -> int:
    """Return after how many steps the weights are the same again."""
    return (topology.period or 1) if isinstance(topology, Schedule) else 1


def predicted_factor(topology: Topology) -> float:
    """Return by what factor one period brings the ranks closer to each other, in the long run."""
    return 1 - topology.spectral_gap()


def measured_factor(topology: Topology, distances: list[float]) -> float:
    """Return the factor of the last period before rounding is all that is left."""
    periods = [d for d in distances[:: period_of(topology)] if d > _ROUNDING]
    return periods[-1] / periods[-2] if len(periods) > 1 else 0.0


def averaging(adapter: Adapter, topology: Topology) -> list[float]:
    """Average random values; return the distance from the mean before and after each step."""
    exchange = Exchange(topology, adapter)
    generator = torch.Generator().manual_seed(exchange.rank)
    params = [torch.randn(32, dtype=torch.float64, generator=generator)]
    distances = [exchange.consensus_distance(params)]
    for step in range(STEPS):
        exchange.gossip_(params, step)
        distances.append(exchange.consensus_distance(params))
    return distances


def data_of(rank: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of one rank; ranks see different inputs."""
    generator = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(20, _FEATURES, dtype=torch.float64, generator=generator)
    noise = torch.randn(20, dtype=torch.float64, generator=generator)
    return inputs, inputs @ torch.arange(1.0, _FEATURES + 1, dtype=torch.float64) + noise


def training(adapter: Adapter, topology: Topology) -> float:
    """Fit a line to this rank's data, with gossip; return how far it is from that of all data."""
    exchange = Exchange(topology, adapter)
    inputs, targets = data_of(exchange.rank)
    weight = torch.zeros(_FEATURES, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 20))
    for step in range(300):
        optimizer.zero_grad()
        (inputs @ weight - targets).square().mean().backward()
        optimizer.step()
        rate.step()
        exchange.gossip_([weight], step)
    all_inputs, all_targets = map(torch.cat, zip(*map(data_of, range(SIZE)), strict=True))
    best = torch.linalg.lstsq(all_inputs, all_targets[:, None]).solution[:, 0]
    return float((weight.detach() - best).norm())


def plot(distances: Mapping[str, list[float]], folder: Path) -> Path:
    """Draw ``gossip.png`` into ``folder``: measured (dots) and predicted (lines) distances."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    axes = figure.subplots()
    for number, (title, measured) in enumerate(distances.items()):
        topology = TOPOLOGIES[title]
        ends = range(0, len(measured), period_of(topology))
        predicted = [measured[0] * predicted_factor(topology) ** k for k in range(len(ends))]
        # What is exactly 0 has no place on a logarithmic axis.
        axes.semilogy([max(d, 1e-17) for d in measured], f"oC{number}", markersize=3, label=title)
        axes.semilogy(ends, [max(d, 1e-17) for d in predicted], f"-C{number}", linewidth=1)
    axes.set(xlabel="step", ylabel="distance from the mean", ylim=(1e-17, None))
    axes.set_title("Gossip on 16 ranks: measured (dots), predicted by the spectral gap (lines)")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gossip.png"
    figure.savefig(path, dpi=120)
    return path


def main(folder: Path) -> None:
    """Run everything, print a table and save the plot."""
    print(f"{'':22}{'factor per period':>24}{'after training, from':>24}")
    print(f"{'':22}{'predicted':>12}{'measured':>12}{'the best fit of all':>24}")
    distances = {}
    for title, topology in TOPOLOGIES.items():
        distances[title] = simulate(SIZE, averaging, topology)[0]
        measured = measured_factor(topology, distances[title])
        error = max(simulate(SIZE, training, topology))
        print(f"{title:22}{predicted_factor(topology):12.4f}{measured:12.4f}{error:24.4f}")
    print(f"plot: {plot(distances, folder)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="for the plot")
    main(parser.parse_args().folder)
