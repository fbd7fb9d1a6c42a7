"""What a flight record says: names and shapes, never values."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

__all__ = [
    "DONE",
    "FORMAT",
    "MOST_ENTRIES",
    "MOST_LANES",
    "MOST_NUMBER",
    "MOST_RANKS",
    "MOST_STEPS",
    "MOST_TEXT",
    "UNDER_WAY",
    "Entry",
    "FlightRecord",
    "Lane",
    "file_name",
    "shortened",
]

FORMAT = "torch-collectives flight record 2"
MOST_ENTRIES, MOST_LANES, MOST_STEPS = 64, 64, 16
MOST_TEXT, MOST_NUMBER, MOST_RANKS = 4000, 2**53, 2**20
DONE: Literal["done"] = "done"
UNDER_WAY: Literal["under way"] = "under way"


@dataclass(frozen=True, slots=True)
class Lane:
    """One tree on its way in an exchange, seen from one rank.

    Args:
        key: The lane's number, the same on every rank.
        destination: Rank that gets mine; ``None`` beyond an open end.
        source: Rank whose tree I get; ``None`` beyond an open end.
        sends: What leaves, in words: ``float32[4]``.
        awaits: What is expected to arrive, in words.
    """

    key: int
    destination: int | None
    source: int | None
    sends: str
    awaits: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One exchange, forward or backward, on one rank.

    Args:
        sequence: Number of the exchange on its group; a backward has its forward's.
        phase: "forward", "backward", "double backward", "tangent" or "discovery".
        op: The operation with its arguments.
        name: Of the Exchange.
        topology: Its repr.
        grad: "grad" or "no_grad": the grad mode of the forward call; or "no gradient".
        step: As told by ``mark_step``.
        tensors: What leaves and arrives, lane by lane, in words.
        state: "done" when everything had been moved, else "under way".
        waited: The rank waits in it, or failed in it; else it was only started.
        started: By the clock on the wall of this host, in seconds since 1970.
        seconds: From posting to arrival, or to the moment of the record.
        lanes: The first 64 of them.
    """

    sequence: int
    phase: str
    op: str
    name: str
    topology: str
    grad: str
    step: tuple[int, ...]
    tensors: str
    state: Literal["done", "under way"]
    waited: bool
    started: float
    seconds: float
    lanes: tuple[Lane, ...]

    @property
    def key(self) -> tuple[int, str]:
        """What tells an exchange from the others of its group."""
        return self.sequence, self.phase

    @property
    def ended(self) -> float:
        """When it was done, or the record taken; by the clock of this host."""
        return self.started + self.seconds

    @property
    def number(self) -> str:
        """``#5``, or ``the backward of #5``."""
        return f"{'' if self.phase == 'forward' else f'the {self.phase} of '}#{self.sequence}"

    @property
    def short(self) -> str:
        """What a table has room for: ``#5 backward of shift of 'kv'``."""
        return self._named(self.op.partition("(")[0])

    def __str__(self) -> str:
        """Return ``#5 shift(offset=1, axis='ring') of 'kv'``."""
        return self._named(self.op)

    def _named(self, op: str) -> str:
        phase = "" if self.phase == "forward" else f"{self.phase} of "
        return f"#{self.sequence} {phase}{op}" + (f" of {self.name!r}" if self.name else "")


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The last exchanges of one group on one rank, oldest first.

    Args:
        rank: Position in the topology.
        size: Ranks of the group.
        topology: Of the Exchange, by its repr; "" if none is known.
        names: Of the Exchanges that exchanged over the group; "" is one without a name.
        group: Tells this group from others of the job: "default", "group-3".
        run: The same on all ranks that greeted each other, and on no others; "" before they did.
        host: Name of the machine.
        pid: Of the process.
        versions: Of torch-collectives, torch and python.
        written: When the record was taken, by the clock of this host, in seconds since 1970.
        failure: Why the group cannot be used any more; "" while it can.
        entries: At most 64.

    Example:
        >>> records = simulate(2, lambda adapter: Exchange(Ring, adapter).flight_record())
        >>> [(record.rank, record.size, record.entries, record.failure) for record in records]
        [(0, 2, (), ''), (1, 2, (), '')]
    """

    rank: int
    size: int
    topology: str
    names: tuple[str, ...]
    group: str
    run: str
    host: str
    pid: int
    versions: dict[str, str] = field(hash=False)
    written: float
    failure: str
    entries: tuple[Entry, ...]

    @property
    def waiting(self) -> Entry | None:
        """The exchange that this rank waits in, or failed in."""
        return next((e for e in self.entries if e.waited), None)

    @property
    def last_done(self) -> Entry | None:
        """The last exchange that this rank has finished."""
        return next((e for e in reversed(self.entries) if e.state == DONE), None)

    def to_json(self) -> str:
        """Return the record as JSON text, one line per exchange; :func:`load` reads it."""
        facts = {"format": FORMAT, **asdict(self)}
        entries = facts.pop("entries")
        head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
        lines = ",\n".join(map(json.dumps, entries))
        return "{" + ",\n".join(head) + f',\n"entries": [\n{lines}\n]}}\n'

    def save(self, folder: str | Path) -> Path:
        """Write ``<group>-rank<r>.json`` into ``folder``, whole or not at all.

        Called by: any rank, at any time.

        Args:
            folder: Made when missing.

        Returns:
            The path of the file. One of the same group and rank is replaced.

        Raises:
            OSError: It cannot be written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / file_name(self.group, self.rank)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)  # of a process that died while it wrote
        try:
            with draft.open("x", encoding="ascii") as file:
                file.write(self.to_json())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return path


def file_name(group: str, rank: int) -> str:
    """Return the name of the file of one rank."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', group)[:100]}-rank{rank}.json"


def shortened(text: str, most: int = MOST_TEXT) -> str:
    """Return ``text``, cut where it would make a record grow without bound.

    What is cut off goes into a digest: two texts that differ still differ.
    """
    if len(text) <= most:
        return text
    end = f" ... [{zlib.crc32(text.encode(errors='replace')):08x}]"
    return text[: most - len(end)] + end
