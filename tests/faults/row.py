"""One row of the fault matrix: what goes wrong, and what every process must then see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .player import Player

__all__ = [
    "DEADLINE",
    "JOIN_TIMEOUT",
    "NOTHING",
    "SLACK",
    "STALL",
    "STORE",
    "Expected",
    "Over",
    "Row",
]

DEADLINE = 4.0  # seconds that each exchange may take
STALL = 0.5  # from here on the watchdog looks why
SLACK = 2.5  # on top of every limit, for machines that are busy
JOIN_TIMEOUT = 6.0  # of process groups

Over = Literal["same host", "gloo"]
"""How messages go: as among ranks of one host, or as between hosts."""

STORE = -1  # the process that hosts the store where no rank does


@dataclass(frozen=True)
class Expected:
    """What one process must see.

    Args:
        errors: It raises one of these; empty: none at all.
        within: Seconds after the fault.
        says: Parts of the error's text.
        code: How it ends; ``None``: as Python does after that error, or 0 without one.
        or_nothing: It may also raise nothing.
        may_leave_threads: Threads may live until the very end of the process.
    """

    errors: tuple[type[BaseException], ...] = ()
    within: float = 0.0
    says: tuple[str, ...] = ()
    code: int | None = None
    or_nothing: bool = False
    may_leave_threads: bool = False

    def __str__(self) -> str:
        """Return it for a table."""
        names = [error.__name__ for error in self.errors] or ["no error"]
        if self.code is not None:
            names = [f"exit code {self.code}"]
        return " or ".join([*names, *["nothing"] * self.or_nothing])


NOTHING = Expected()


@dataclass(frozen=True, eq=False)
class Row:
    """One fault.

    Args:
        fault: Its name.
        program: What every process runs.
        expected: On every process,
        but: except on these (``None``: not judged, since it is the one that dies).
        size: Number of processes.
        store: Who hosts the store: rank 0, found through the adapter's own rendezvous; rank 0 at
            the port that ``MASTER_PORT`` names; or a process of its own, as torchrun's agent does.
        limit: Seconds for the whole row; what still runs then is killed.
    """

    fault: str
    program: Callable[[Player], None]
    expected: Expected
    but: Mapping[int, Expected | None] = field(default_factory=dict)
    size: int = 4
    store: Literal["rank 0", "port", "outside"] = "rank 0"
    limit: float = DEADLINE + 14.0

    @property
    def judged(self) -> dict[int, Expected]:
        """What is expected, by process."""
        by_number = {n: self.but.get(n, self.expected) for n in range(self.size)}
        return {n: expected for n, expected in by_number.items() if expected is not None}
