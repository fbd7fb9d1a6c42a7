"""``python -m collectives flight-record``: who was where when an exchange failed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import ArgumentError
from ..record import FlightRecord, groups, jobs, load, moment, ranks_in_words, table, verdict
from ..record.dumping import dumped_jobs
from .output import complain, say

__all__ = ["define"]

_NAME = "flight-record"


def define(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, and what runs it, to its parser."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="a folder of <group>-rank<r>.json files; the default is the newest of this user's jobs"
        " on this host",
    )
    parser.add_argument(
        "--all", action="store_true", help="report every job in the folder, not only the latest"
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    """Report; exit status 1 where a file could not be read or there is none."""
    folder: Path | None = chosen.folder or next(iter(dumped_jobs()), None)
    if folder is None:
        return complain(_NAME, "no job of this user has left a flight record on this host")
    if not folder.is_dir():
        return complain(_NAME, f"{folder} is no folder; give the one that the ranks' files are in")
    records, unread = _read(folder)
    for problem in unread:
        complain(_NAME, problem)
    if not records:
        return complain(_NAME, f"there is no flight record in {folder}{_inner(folder)}")
    latest, *others = jobs(records)
    shown = [latest, *others] if chosen.all else [latest]
    if chosen.json:
        found = [_facts(one, job) for job, of in enumerate(shown) for one in groups(of)]
        facts = {"folder": str(folder), "groups": found, "jobs": len(others) + 1}
        say(json.dumps(facts, indent=2))
    else:
        parts = [str(folder), *(_report(one) for of in shown for one in groups(of))]
        if others and not chosen.all:
            parts.append(_mention(others))
        say("\n\n".join(parts))
    return 1 if unread else 0


def _read(folder: Path) -> tuple[list[FlightRecord], list[str]]:
    """Return the records, and what is wrong with files that are none."""
    records: list[FlightRecord] = []
    unread: list[str] = []
    for path in sorted(folder.glob("*.json")):
        found = _read_one(path)
        if isinstance(found, str):
            unread.append(found)
        else:
            records.append(found)
    return records, unread


def _read_one(path: Path) -> FlightRecord | str:
    try:
        return load(path)
    except (ArgumentError, OSError) as error:
        return str(error)


def _report(records: Sequence[FlightRecord]) -> str:
    size = records[0].size
    topology = next((r.topology for r in records if r.topology), "no topology known")
    head = f"group {records[0].group!r}: {size} rank{'s' if size > 1 else ''}, {topology}"
    return "\n".join([head, "", table(records), "", *verdict(records)])


def _mention(others: Sequence[Sequence[FlightRecord]]) -> str:
    newest = others[0]
    ranks = ranks_in_words(record.rank for record in newest)
    when = moment(max(record.written for record in newest))
    which = "another job" if len(others) == 1 else f"{len(others)} other jobs"
    return (
        f"The folder also has records of {which}, the latest written at {when} ({ranks} of"
        f" {newest[0].size}); --all reports them too."
    )


def _facts(records: Sequence[FlightRecord], job: int) -> dict[str, object]:
    return {
        "group": records[0].group,
        "size": records[0].size,
        "job": job,
        "ranks": [json.loads(r.to_json()) for r in sorted(records, key=lambda r: r.rank)],
        "verdict": verdict(records),
    }


def _inner(folder: Path) -> str:
    inner = sorted(path.name for path in folder.iterdir() if path.is_dir())[:8]
    return f"; it has the folders {', '.join(inner)}: give one of them" if inner else ""
