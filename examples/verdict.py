"""Do the runs agree, and did they learn? Decided by code, said in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .digits import CHANCE
from .record import Record

__all__ = ["TOLERANCE", "deviations", "faults", "global_losses", "parameter_deviation"]

# Largest difference to the reference that is still called the same, by dtype. It is the rounding of
# a loss of 30 and what training makes of it: 1e-14 in float64 and 1e-5 in float32 on 1 to 5 ranks,
# with room for other processors.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}

_CLEARLY = 5  # times chance


def global_losses(records: Sequence[Record]) -> Tensor:
    """Return the loss of the global batch at every step: the mean over the ranks."""
    return torch.tensor([record.losses for record in records], dtype=torch.float64).mean(dim=0)


def deviations(records: Sequence[Record], reference: Sequence[Record]) -> Tensor:
    """Return how far the global loss is from the reference's, at every step."""
    return (global_losses(records) - global_losses(reference)).abs()


def parameter_deviation(record: Record, reference: Record) -> tuple[float, str]:
    """Return how far the trained parameters are apart, and the name of the worst."""
    names = list(record.parameters)
    apart = torch.stack(
        [(record.parameters[name] - reference.parameters[name]).abs().max() for name in names]
    )
    worst = int(apart.argmax())  # a NaN counts as the largest
    return float(apart[worst]), names[worst]


def faults(runs: Mapping[str, Sequence[Record]], *, reference: str, tolerance: float) -> list[str]:
    """Return a sentence for everything that is not as it must be.

    Args:
        runs: The complete records of all ranks, by title.
        reference: Title of the run that the others are compared with.
        tolerance: For every step's global loss and for every parameter, absolute.
    """
    found = []
    for title, records in runs.items():
        found += [f"{title} {fault}" for fault in _unlearned(records) + _unmoved(records)]
        if title != reference:
            apart = _apart(records, runs[reference], tolerance)
            found += [f"{title} disagrees with {reference}: {fault}" for fault in apart]
    return found


# `not x <= y` below, so that a NaN is a fault too.


def _apart(records: Sequence[Record], reference: Sequence[Record], tolerance: float) -> list[str]:
    found = []
    apart = deviations(records, reference)
    wrong = (~(apart <= tolerance)).nonzero().flatten()
    if len(wrong):
        step = int(wrong[0])
        found.append(
            f"its loss at step {step} is {global_losses(records)[step]:.12g}, expected"
            f" {global_losses(reference)[step]:.12g} (apart by {apart[step]:.1e},"
            f" tolerance {tolerance:.0e}); {len(wrong)} of {len(apart)} steps are apart"
        )
    trained = [(record.rank, *parameter_deviation(record, reference[0])) for record in records]
    astray = [one for one in trained if not one[1] <= tolerance]
    if astray:
        rank, distance, name = astray[0]
        found.append(
            f"its trained parameter {name} on rank {rank} of {len(records)} is apart by"
            f" {distance:.1e} (tolerance {tolerance:.0e}); {len(astray)} of {len(records)} ranks"
            " have such a parameter"
        )
    return found


def _unlearned(records: Sequence[Record]) -> list[str]:
    losses, accuracy = global_losses(records), records[0].accuracy
    found = []
    if not losses[-1] <= losses[0] / 2:
        found.append(f"did not halve its loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    if not accuracy >= _CLEARLY * CHANCE:
        found.append(
            f"retrieves {accuracy:.1%} of the captions, not clearly above chance ({CHANCE:.0%}):"
            f" expected {_CLEARLY * CHANCE:.0%} or more"
        )
    return found


def _unmoved(records: Sequence[Record]) -> list[str]:
    """Agreement means nothing where no text has travelled."""
    silent = [record.rank for record in records if (record.bytes_sent > 0) != (record.size > 1)]
    if silent:
        return [f"sent {records[silent[0]].bytes_sent} bytes on rank {silent[0]}"]
    return []
