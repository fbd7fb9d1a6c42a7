"""What ``python -m collectives`` does: a subcommand each."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from .errors import ArgumentError
from .record import FlightRecord, load, table, verdict
from .record.dumping import dumped_jobs

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the name of the program; the default is what the process was given.

    Returns:
        The exit status: 0, or 1 where a file could not be read or there is none.
    """
    parser = argparse.ArgumentParser(
        prog="python -m collectives", description="Neighbour exchange for PyTorch."
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    _define_flight_record(
        commands.add_parser(
            "flight-record",
            help="say who was where when an exchange failed",
            description="Read the flight records that the ranks of a job have left, and say who was"
            " where: who ran another exchange than the rest, who is behind, who is missing.",
        )
    )
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status


def _define_flight_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=Path,
        help="a folder of <group>-rank<r>.json files; the default is the newest of this user's jobs"
        " on this host",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.set_defaults(run=_flight_record)


def _flight_record(chosen: argparse.Namespace) -> int:
    folder: Path | None = chosen.folder or next(iter(dumped_jobs()), None)
    if folder is None:
        return _complain("no job of this user has left a flight record on this host")
    if not folder.is_dir():
        return _complain(f"{folder} is no folder; give the one that the ranks' files are in")
    by_group, unread = _read(folder)
    for problem in unread:
        _complain(problem)
    if not by_group:
        return _complain(f"there is no flight record in {folder}{_inner(folder)}")
    if chosen.json:
        found = [_facts(group, records) for group, records in sorted(by_group.items())]
        print(json.dumps({"folder": str(folder), "groups": found}, indent=2))  # noqa: T201
    else:
        found_words = [_report(g, records) for g, records in sorted(by_group.items())]
        print(f"{folder}\n\n" + "\n\n".join(found_words))  # noqa: T201
    return 1 if unread else 0


def _read(folder: Path) -> tuple[dict[str, list[FlightRecord]], list[str]]:
    """Return the records by group, and what is wrong with files that are none."""
    by_group: dict[str, list[FlightRecord]] = defaultdict(list)
    unread: list[str] = []
    for path in sorted(folder.glob("*.json")):
        found = _read_one(path)
        if isinstance(found, str):
            unread.append(found)
        else:
            by_group[found.group].append(found)
    return dict(by_group), unread


def _read_one(path: Path) -> FlightRecord | str:
    try:
        return load(path)
    except (ArgumentError, OSError) as error:
        return str(error)


def _report(group: str, records: Sequence[FlightRecord]) -> str:
    size = max(record.size for record in records)
    topology = next((r.topology for r in records if r.topology), "no topology known")
    head = f"group {group!r}: {size} rank{'s' if size > 1 else ''}, {topology}"
    return "\n".join([head, "", table(records), "", *verdict(records)])


def _facts(group: str, records: Sequence[FlightRecord]) -> dict[str, object]:
    return {
        "group": group,
        "size": max(record.size for record in records),
        "ranks": [json.loads(r.to_json()) for r in sorted(records, key=lambda r: r.rank)],
        "verdict": verdict(records),
    }


def _inner(folder: Path) -> str:
    inner = sorted(path.name for path in folder.iterdir() if path.is_dir())[:8]
    return f"; it has the folders {', '.join(inner)}: give one of them" if inner else ""


def _complain(text: str) -> int:
    print(f"flight-record: {text}", file=sys.stderr)  # noqa: T201
    return 1
