"""Flight records made by hand, for what no run brings about at will."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from collectives.record import Entry, FlightRecord, Lane

__all__ = ["NOON", "done", "record", "under_way"]

NOON = 1_700_000_000.0
VERSIONS = {"torch-collectives": "0.1.0", "torch": "2.13.0", "python": "3.12.0"}


def done(
    rank: int,
    size: int,
    sequence: int,
    *,
    name: str = "kv",
    phase: str = "forward",
    shape: int = 4,
    awaits: int | None = None,
    late: float = 0.0,
) -> Entry:
    """A shift round a ring, one per second, that took half a second."""
    lane = Lane(
        0,
        (rank + 1) % size,
        (rank - 1) % size,
        f"float32[{shape}]",
        f"float32[{shape if awaits is None else awaits}]",
    )
    return Entry(
        sequence=sequence,
        phase=phase,
        op="shift(offset=1, axis='ring')",
        name=name,
        topology=f"Ring({size})",
        grad="grad",
        step=(0, sequence),
        tensors=f"(float32[{shape}])",
        state="done",
        waited=False,
        started=NOON + sequence + late,
        seconds=0.5,
        lanes=(lane,),
    )


def under_way(rank: int, size: int, sequence: int, *, name: str = "kv", shape: int = 4) -> Entry:
    """A shift that its rank waits in."""
    facts = done(rank, size, sequence, name=name, shape=shape)
    return dataclasses.replace(facts, state="under way", waited=True, seconds=30.0)


def record(
    rank: int,
    size: int,
    entries: Sequence[Entry],
    *,
    failure: str = "",
    host: str = "here",
    written: float = NOON + 100,
    run: str = "run",
    pid: int = 0,
) -> FlightRecord:
    return FlightRecord(
        rank=rank,
        size=size,
        topology=f"Ring({size})",
        names=tuple(sorted({entry.name for entry in entries})),
        group="default",
        run=run,
        host=host,
        pid=pid or 1000 + rank,
        versions=VERSIONS,
        written=written,
        failure=failure,
        entries=tuple(entries),
    )
