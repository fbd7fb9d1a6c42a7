"""Which records belong together: a folder may hold those of several jobs.

Ranks that greeted each other share a run; a process that is in two runs (of two groups, or of one
group after another) ties them together to one job. What failed before the greeting has no run:
there the time must do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .values import FlightRecord

__all__ = ["groups", "jobs"]

_CLOSE = 600.0  # seconds between the records of ranks that did not come to greet each other


def jobs(records: Iterable[FlightRecord]) -> list[list[FlightRecord]]:
    """Return the records of each job, the job that wrote last first.

    Args:
        records: Of any jobs.
    """
    found: list[tuple[set[object], list[FlightRecord]]] = []
    for record in sorted(records, key=lambda record: record.written):
        ties, members = set(_ties(record, (of for _, of in found))), [record]
        apart = []
        for others in found:
            if ties & others[0]:
                ties, members = ties | others[0], others[1] + members
            else:
                apart.append(others)
        found = [*apart, (ties, members)]
    return sorted((of for _, of in found), key=lambda of: -max(r.written for r in of))


def groups(records: Iterable[FlightRecord]) -> list[list[FlightRecord]]:
    """Return the records of one job group by group, by name, the newest of a name first."""
    found: dict[tuple[str, int, str], list[FlightRecord]] = defaultdict(list)
    for record in records:
        found[record.group, record.size, record.run].append(record)
    newest_first = sorted(found.values(), key=lambda of: -max(r.written for r in of))
    return sorted(newest_first, key=lambda of: of[0].group)


def _ties(record: FlightRecord, jobs: Iterator[Sequence[FlightRecord]]) -> Iterator[object]:
    """Yield what a record has in common with others of its job."""
    yield record.host, record.pid
    if record.run:
        yield record.run
        return
    for other in (other for job in jobs for other in job):
        alike = (other.group, other.size, other.run) == (record.group, record.size, "")
        if alike and other.rank != record.rank and record.written - other.written < _CLOSE:
            yield other.host, other.pid
