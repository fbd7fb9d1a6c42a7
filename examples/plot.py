"""The loss curves of all runs, and how far each is from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .record import Record
from .verdict import deviations, global_losses

__all__ = ["plot_losses"]

_MARKERS = "osD^"
_EVERY = 12  # steps between two markers of a run


def plot_losses(
    runs: Mapping[str, Sequence[Record]], *, reference: str, tolerance: float, folder: Path
) -> Path:
    """Draw ``loss.png`` into ``folder`` and return its path.

    Args:
        runs: The records of all ranks, by title.
        reference: Title of the run that the others are compared with.
        tolerance: Drawn as a line among the differences.
        folder: Made if need be.
    """
    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.plot(global_losses(runs[reference]), color="0.75", linewidth=7, label=reference)
    others = [title for title in runs if title != reference]
    for number, title in enumerate(others):
        # Staggered markers: the curves lie on top of each other.
        first = number * _EVERY // len(others)
        label = f"{title}, {len(runs[title])} rank(s)"
        style = {"color": f"C{number}", "marker": _MARKERS[number], "markevery": (first, _EVERY)}
        above.plot(global_losses(runs[title]), linewidth=1, label=label, **style)
        # A difference of exactly 0 has no place on a logarithmic axis.
        apart = deviations(runs[title], runs[reference]).clamp(min=1e-17)
        below.semilogy(apart, linewidth=1, label=label, **style)
    below.axhline(tolerance, color="crimson", linestyle="--", label=f"tolerance {tolerance:.0e}")
    above.set(ylabel="global loss", ylim=(0, None), title="SigLIP loss, texts going round the ring")
    below.set(xlabel="step", ylabel="apart from the reference")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "loss.png"
    figure.savefig(path, dpi=120)
    return path
