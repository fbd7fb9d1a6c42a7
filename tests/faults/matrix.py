"""The fault matrix: what the library promises, as data."""

from __future__ import annotations

from .controls import CONTROLS
from .jobs import JOBS
from .losses import LOSSES
from .mismatches import MISMATCHES
from .processes import PROCESSES
from .row import Row

__all__ = ["ROWS", "SECTIONS"]

SECTIONS: dict[str, tuple[Row, ...]] = {
    "No fault": CONTROLS,
    "The ranks do not call the same exchange": MISMATCHES,
    "A rank, or the store, is gone": LOSSES,
    "Signals, forks, threads, copies": PROCESSES,
    "How the job was started": JOBS,
}

ROWS = tuple(row for rows in SECTIONS.values() for row in rows)
