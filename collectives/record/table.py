"""Who is where, one line per rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .line import waits_of
from .values import UNDER_WAY, FlightRecord
from .words import moment, ranks_in_words, seconds_in_words

__all__ = ["table"]

_HEAD = ("rank", "host", "last finished", "under way", "waits for", "since", "failure")
# What a failure text begins with, and other columns say.
_SIGNATURE = re.compile(r"^exchange #.*?\)(?: failed)?: ")
_WIDEST = (8, 20, 44, 44, 16, 20, 48)


def table(records: Sequence[FlightRecord]) -> str:
    """Return an aligned table of the records of one group.

    Args:
        records: Of any ranks, in the order of the lines; missing ranks get a line of their own.
    """
    if not records:
        return ""
    rows = {record.rank: _row(record) for record in records}
    size = max(record.size for record in records)
    missing = [rank for rank in range(size) if rank not in rows]
    lines = [_HEAD, *(rows[rank] for rank in sorted(rows))]
    if missing:
        lines.append((ranks_in_words(missing, ""), "", "(no file)", "", "", "", ""))
    keep = [i for i in range(len(_HEAD)) if any(row[i] for row in lines[1:])]
    if len({record.host for record in records}) == 1:
        keep.remove(1)  # one host is not worth a column
    cells = [[_cut(row[i], _WIDEST[i]) for i in keep] for row in lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(keep))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(_aligned(row, widths) for row in cells)


def _row(record: FlightRecord) -> tuple[str, ...]:
    done, waiting = record.last_done, record.waiting
    started = [entry for entry in record.entries if entry.state == UNDER_WAY]
    under_way = waiting or (started[-1] if started else None)
    peers = {wait.peer for wait in waits_of(record.rank, waiting)} if waiting is not None else set()
    since = ""
    if under_way is not None:
        since = f"{moment(under_way.started)} ({seconds_in_words(under_way.seconds)})"
    return (
        str(record.rank),
        record.host,
        done.short if done is not None else "-",
        (under_way.short if under_way is not None else "-")
        + ("" if under_way is waiting else " (started)"),
        ranks_in_words(peers, "") or "-",
        since or "-",
        _SIGNATURE.sub("", " ".join(record.failure.split())),
    )


def _cut(text: str, widest: int) -> str:
    return text if len(text) <= widest else text[: widest - 3] + "..."


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
