"""Chrome traces of several ranks: merged into one, and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

__all__ = ["Event", "Trace", "merge", "plot_timeline"]

PREFIX = "collectives::"
ON_ITS_WAY = 1  # the thread, in the merged trace, of what was posted and not yet waited for
_COLORS = {
    "post": "tab:orange",
    "wait": "tab:red",
    "on its way": "navajowhite",
    "block": "tab:blue",
    "backward": "tab:cyan",
}


class Event(TypedDict, total=False):
    """One event of a Chrome trace; times in microseconds."""

    ph: str
    name: str
    cat: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float
    id: int | str
    args: Mapping[str, object]


class Trace(TypedDict, total=False):
    """What a profiler of torch writes."""

    traceEvents: list[Event]
    baseTimeNanoseconds: int
    displayTimeUnit: str


def merge(traces: Sequence[Trace]) -> Trace:
    """Return one trace of all ranks, each a process with its rank as number and name.

    Args:
        traces: By rank; of one host, so that their clocks are one.
    """
    base = traces[0].get("baseTimeNanoseconds", 0)
    # Differences first: microseconds since 1970 leave no digits for their fractions.
    later = [(trace.get("baseTimeNanoseconds", 0) - base) / 1000 for trace in traces]
    kept = [list(_kept(trace)) for trace in traces]
    zero = min(event["ts"] + late for late, of in zip(later, kept, strict=True) for event in of)
    events: list[Event] = []
    for rank, (late, of_rank) in enumerate(zip(later, kept, strict=True)):
        events += _names(rank)
        moved = [_moved(event, rank, late - zero) for event in of_rank]
        events += moved
        events += _on_their_way(moved, rank)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _ranges(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.get("ph") == "X" and "dur" in event]


def _kept(trace: Trace) -> Iterator[Event]:
    """Leave out the profiler's own spans, and the names that processes had."""
    for event in trace["traceEvents"]:
        if event.get("ph") != "M" and isinstance(event.get("pid"), int) and "ts" in event:
            yield event


def _moved(event: Event, rank: int, shift: float) -> Event:
    moved: Event = {**event, "pid": rank, "ts": event["ts"] + shift}
    if "id" in event:  # an arrow between two events, of this rank alone
        moved["id"] = f"{rank}.{event['id']}"
    return moved


def _names(rank: int) -> list[Event]:
    def named(kind: str, tid: int, **args: object) -> Event:
        return {"ph": "M", "name": kind, "pid": rank, "tid": tid, "ts": 0.0, "args": args}

    return [
        named("process_name", 0, name=f"rank {rank}"),
        named("process_sort_index", 0, sort_index=rank),
        named("thread_name", ON_ITS_WAY, name="on its way"),
        named("thread_sort_index", ON_ITS_WAY, sort_index=-1),
    ]


def _on_their_way(events: Sequence[Event], rank: int) -> list[Event]:
    """Return a range for each exchange, from its first message until it was waited for."""
    posted: dict[str, list[Event]] = {}
    found: list[Event] = []
    for event in sorted(_ranges(events), key=lambda event: event["ts"]):
        exchange, _, part = event["name"].rpartition(" ")
        if not exchange.startswith(PREFIX):
            continue
        if part == "post":
            posted.setdefault(exchange, []).append(event)
        elif part == "wait":
            begun = posted[exchange].pop(0)["ts"]
            found.append(
                {
                    "ph": "X",
                    "cat": "exchange",
                    "name": exchange,
                    "pid": rank,
                    "tid": ON_ITS_WAY,
                    "ts": begun,
                    "dur": event["ts"] + event["dur"] - begun,
                }
            )
    return found


def plot_timeline(trace: Trace, folder: Path) -> Path:
    """Draw ``trace.png`` into ``folder``: two rows for each rank of a merged trace.

    Args:
        trace: As :func:`merge` returns it.
        folder: That exists.
    """
    ranges = _ranges(trace["traceEvents"])
    ranks = sorted({event["pid"] for event in ranges if isinstance(event["pid"], int)})
    whole = max(event["ts"] + event["dur"] for event in ranges) / 1000
    figure = Figure(figsize=(12, 1.4 + 1.3 * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display
    axes = figure.subplots()
    labels: dict[float, str] = {}
    for rank in ranks:
        computes, exchanges = 2.6 * rank, 2.6 * rank + 1
        labels |= {computes: f"rank {rank} computes", exchanges: f"rank {rank} exchanges"}
        for event in (event for event in ranges if event["pid"] == rank):
            kind = _kind(event)
            if kind is not None:
                row = computes if kind in ("block", "backward") else exchanges
                _draw(axes, event, kind, row, named=event["dur"] / 1000 > whole / 40)
    axes.set_yticks(list(labels), list(labels.values()))
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", title="Blocks travel round the ring while ranks compute")
    axes.grid(axis="x", alpha=0.3)
    names = {"block": "block, by the rank that it comes from"}
    patches = [Patch(color=color, label=names.get(k, k)) for k, color in _COLORS.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    path = folder / "trace.png"
    figure.savefig(path, dpi=120)
    return path


def _draw(axes: Axes, event: Event, kind: str, row: float, *, named: bool) -> None:
    begin, length = event["ts"] / 1000, event["dur"] / 1000
    below = kind == "on its way"
    axes.broken_barh(
        [(begin, length)],
        (row - 0.4, 0.8),
        facecolor=_COLORS[kind],
        edgecolor="none" if kind in ("post", "wait") else "white",
        zorder=1 if below else 2,
    )
    if named and kind == "block":
        text = event["name"].replace("block of ", "")
        axes.text(
            begin + length / 2, row, text, color="white", size=8, ha="center", va="center",
            clip_on=True, rotation=90, zorder=3,
        )  # fmt: skip


def _kind(event: Event) -> str | None:
    """Return as what a range is drawn; ``None``: not at all."""
    if event["tid"] == ON_ITS_WAY:
        return "on its way"
    if event["name"].startswith(PREFIX):
        part = event["name"].rpartition(" ")[2]
        return part if part in ("post", "wait") else None
    return next((kind for kind in ("block", "backward") if event["name"].startswith(kind)), None)
