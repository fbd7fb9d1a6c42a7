"""All ranks of a job in one report: each tells rank 0 what it found, and they exchange for real.

No rank waits for ever for another: rank 0 reports whoever does not come, and when the launcher
ends it, it reports what it knows by then.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ..devices import pick_device
from ..errors import ArgumentError, CollectivesError
from ..launcher import Launch
from ..record.words import ranks_in_words
from ..transport.bulletin import Bulletin
from .checks import differences
from .findings import Finding, without_echoes
from .logs import explain, recognise
from .opening import PATIENCE, open_bulletin
from .rank import RankReport, Trial

__all__ = ["Ended", "Job", "meet", "merged", "until_ended"]

Tell = Callable[[str, float], None]

_MORE = 5.0  # seconds for the notes of others, once this rank knows how it went


class Ended(BaseException):
    """This process got SIGTERM: launchers send it to all ranks once one has failed."""


@contextmanager
def until_ended() -> Iterator[None]:
    """Let SIGTERM raise :class:`Ended` in the block, in the main thread."""

    def end(*_: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Job:
    """What rank 0 knows of the ranks of its job.

    Args:
        launch: Of rank 0.
        report: Of rank 0.
    """

    def __init__(self, launch: Launch, report: RankReport) -> None:
        self.launch = launch
        self.reports: dict[int, RankReport] = {report.rank: report}
        self.trouble = ""  # why the ranks cannot even meet

    @property
    def missing(self) -> list[int]:
        """The ranks that could have told something, and have not."""
        if self.trouble:
            return []
        return [rank for rank in range(self.launch.size) if rank not in self.reports]

    def read(self, notes: dict[int, str]) -> None:
        """Take note of reports, in place of those that the same ranks gave before."""
        self.reports |= {rank: _read(rank, text) for rank, text in notes.items()}

    def findings(self) -> list[Finding]:
        """Return what all ranks found, each finding once, and what they differ in."""
        reports = [self.reports[rank] for rank in sorted(self.reports)]
        if self.trouble:  # so nobody could report
            return without_echoes(merged(reports), [explain("the ranks cannot meet", self.trouble)])
        found = [*_of_absent(self), *differences(reports), *merged(reports)]
        return without_echoes(found, _of_trials(reports, absent=bool(self.missing)))


def _read(rank: int, text: str) -> RankReport:
    try:
        return replace(RankReport.from_json(text), rank=rank)
    except ArgumentError as error:
        remedy = "install one version of torch-collectives on all hosts"
        return RankReport(rank, {}, (Finding("problem", str(error), remedy),))


def meet(
    launch: Launch,
    job: Job,
    report: RankReport,
    *,
    seconds: float,
    tell: Tell,
    exchange: bool = True,
    patience: float = PATIENCE,
) -> None:
    """Tell rank 0 what this rank found, try an exchange, and tell how it went.

    Called by every rank of the job. Rank 0 returns with the reports of all others in ``job``, as
    far as they came; the others once they have told.

    Args:
        launch: Which process this is.
        job: To be filled, on rank 0.
        report: Of this rank.
        seconds: To wait for each: rank 0, the group, and the other reports.
        tell: Is told, again and again, what is waited for and for how many seconds.
        exchange: Whether to try one; the same on all ranks.
        patience: Seconds after which a listener that says nothing is no store of this job.

    Raises:
        CollectivesError: The ranks cannot meet.
    """
    begun = time.monotonic()

    def say(what: str) -> None:
        tell(what, time.monotonic() - begun)

    say("waiting for rank 0" if launch.rank else "opening the store")
    with ExitStack() as stack:
        board = open_bulletin(launch, seconds, patience, stack)
        board.post("found", launch.rank, report.to_json())
        trial = _try(launch, seconds, say) if exchange else Trial()
        report = replace(report, trial=trial)
        board.post("tried", launch.rank, report.to_json())
        if launch.rank == 0:
            job.reports[0] = report
            _collect(board, job, _MORE if trial.error else seconds, say)


def _try(launch: Launch, seconds: float, say: Callable[[str], None]) -> Trial:
    from .trial import try_exchange

    try:
        device = pick_device(launch.local_rank)
    except CollectivesError as error:
        return Trial(error=str(error))
    return try_exchange(launch, device, seconds, say)


def _collect(board: Bulletin, job: Job, seconds: float, say: Callable[[str], None]) -> None:
    others = range(1, job.launch.size)

    def waiting(missing: Sequence[int]) -> None:
        say(f"waiting for the report of {ranks_in_words(missing)}")

    job.read(board.collect("tried", others, seconds, waiting))
    late = [rank for rank in others if rank not in job.reports]
    job.read(board.collect("found", late, 0.0, waiting))


def merged(reports: Sequence[RankReport]) -> list[Finding]:
    """Return the findings of all ranks, each once, with the ranks that have it.

    What one check found on several hosts is one finding, in the words of the first of them: a
    thousand hosts have a thousand names.
    """
    same: dict[tuple[str, str, int], dict[int, Finding]] = {}
    for report in reports:
        seen: Counter[tuple[str, str]] = Counter()
        for finding in report.findings:
            what = finding.severity, finding.kind or finding.title
            same.setdefault((*what, seen[what]), {})[report.rank] = finding
            seen[what] += 1
    return [_of_all(by_rank) if len(reports) > 1 else by_rank[min(by_rank)]
            for by_rank in same.values()]  # fmt: skip


def _of_all(by_rank: dict[int, Finding]) -> Finding:
    first = by_rank[min(by_rank)]
    alike = [rank for rank, finding in by_rank.items() if finding != first]
    detail = [first.detail, f"The like on {ranks_in_words(alike)}." if alike else ""]
    ranks = tuple(sorted(by_rank))
    return replace(first, ranks=ranks, detail="\n".join(filter(None, detail)))


def _of_absent(job: Job) -> Iterator[Finding]:
    if job.missing:
        who = ranks_in_words(job.missing)
        yield Finding(
            "problem",
            f"{who} of {job.launch.size} did not report",
            "see the output of these ranks: they did not start, ended, or cannot reach rank 0"
            " (wrong MASTER_ADDR or MASTER_PORT, a firewall)",
        )


def _of_trials(reports: Sequence[RankReport], *, absent: bool) -> Iterator[Finding]:
    """Yield why the exchange failed: once for all ranks that say the same.

    Args:
        reports: Of the ranks.
        absent: Others did not report: that these waited for them needs no finding of its own.
    """
    errors: dict[str, dict[int, str]] = {}
    for report in reports:
        error = "it did not come to an end in time" if report.trial is None else report.trial.error
        known = recognise(error)
        follows = report.trial is None or (known is not None and known.name == "absent-rank")
        if error and not (absent and follows):
            errors.setdefault(error if known is None else known.name, {})[report.rank] = error
    for by_rank in errors.values():
        first = min(by_rank.values(), key=lambda error: "[told to " in error)  # who knows it itself
        yield replace(explain("the ranks cannot exchange", first), ranks=tuple(by_rank))
