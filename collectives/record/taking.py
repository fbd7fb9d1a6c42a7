"""Taking a flight record: from what a group remembers to words."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from .values import (
    DONE,
    MOST_ENTRIES,
    MOST_LANES,
    MOST_NUMBER,
    MOST_STEPS,
    UNDER_WAY,
    Entry,
    FlightRecord,
    Lane,
    shortened,
)

if TYPE_CHECKING:
    from ..messages import Leaf
    from ..state import GroupState
    from ..trace import Trace

__all__ = ["take"]

_MOST_WORDS = 500  # letters of an operation, a topology, ...


def take(
    state: GroupState,
    *,
    rank: int,
    size: int,
    group: str,
    topology: str = "",
    failure: str | None = None,
) -> FlightRecord:
    """Write down what a group remembers of its last exchanges on this rank.

    Called by: any rank, from any thread. Nothing is exchanged, and no tensor is looked at.

    Args:
        state: Of the group.
        rank: Of this process in the group.
        size: Ranks of the group.
        group: Its label.
        topology: Its repr; the default is that of the last exchange.
        failure: Why the group cannot be used any more; the default is what its state says.
    """
    traces = list(state.history)[-MOST_ENTRIES:]
    flight = state.waiting or state.wreck
    waited = flight.trace if flight is not None and traces else None
    clock, moment = time.time(), time.monotonic()
    entries = tuple(_entry(trace, clock, moment, waited=trace is waited) for trace in traces)
    if not topology and entries:
        topology = entries[-1].topology
    broken = state.broken if failure is None else failure
    return FlightRecord(
        rank=rank,
        size=size,
        topology=shortened(topology, _MOST_WORDS),
        names=tuple(sorted({entry.name for entry in entries})),
        group=shortened(group, _MOST_WORDS),
        run=state.run,
        host=shortened(platform.node(), _MOST_WORDS),
        pid=os.getpid(),
        versions={
            "torch-collectives": _own_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        written=clock,
        failure=shortened(broken or ""),
        entries=entries,
    )


def _entry(trace: Trace, clock: float, moment: float, *, waited: bool) -> Entry:
    signature = trace.signature()
    ended = trace.ended
    return Entry(
        sequence=signature.sequence,
        phase=signature.phase,
        op=shortened(signature.op, _MOST_WORDS),
        name=shortened(signature.name, _MOST_WORDS),
        topology=shortened(signature.topology, _MOST_WORDS),
        grad=signature.grad,
        step=tuple(max(-MOST_NUMBER, min(n, MOST_NUMBER)) for n in signature.step[:MOST_STEPS]),
        tensors=shortened(signature.tensors, _MOST_WORDS),
        state=DONE if ended else UNDER_WAY,
        waited=waited and not ended,
        started=clock - (moment - trace.begun),
        seconds=max(0.0, (ended or moment) - trace.begun),
        lanes=_lanes(trace),
    )


def _lanes(trace: Trace) -> tuple[Lane, ...]:
    call = trace.call
    if call.discovers:
        return ()  # what it awaits is not known yet
    lanes = zip(call.plan.lanes, call.sends, call.recvs, strict=True)
    return tuple(
        Lane(lane.key, lane.destination, lane.source, _in_words(sent), _in_words(awaited))
        for lane, sent, awaited in list(lanes)[:MOST_LANES]
    )


def _in_words(leaves: tuple[Leaf, ...]) -> str:
    return shortened(", ".join(map(str, leaves)), _MOST_WORDS)


def _own_version() -> str:
    try:
        return metadata.version("torch-collectives")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"
