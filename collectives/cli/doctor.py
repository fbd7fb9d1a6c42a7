"""``python -m collectives doctor``: what keeps ranks from starting or exchanging."""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TextIO

from ..doctor.checks import check
from ..doctor.findings import Finding, without_echoes
from ..doctor.logs import explain, read_log
from ..doctor.looking import look
from ..doctor.opening import PATIENCE
from ..doctor.rank import RankReport
from ..doctor.screen import (
    Line,
    Span,
    findings_lines,
    log_lines,
    ranks_lines,
    section_lines,
    summary,
)
from ..doctor.selftest import PairTest, run_pair
from ..doctor.snapshot import Snapshot
from ..doctor.together import Ended, Job, meet, until_ended
from ..doctor.wording import Section, rank_facts, sections, selftest_section, speed
from ..errors import CollectivesError
from ..launcher import Launch, find_launch
from ..transport.stopwatch import TimeIsUpError, call_bounded
from .output import Progress, complain, say, screen_width, show

__all__ = ["define"]

_NAME = "doctor"
_LOOKING = 90.0  # seconds, more than all bounds in it: a file system or driver may have none
_ENDED = (
    "it was ended by SIGTERM, as launchers do once another rank failed; see what rank 0 reports"
)
_SPARE = 30.0  # seconds beyond all bounds, after which the process ends itself
_LAST = 5.0  # more, if not even that can be done


def define(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, and what runs it, to its parser."""
    parser.add_argument(
        "log",
        metavar="LOGFILE",
        nargs="?",
        help="only say what is known of the errors in this training log (- is stdin)",
    )
    parser.add_argument("--log", dest="log_option", metavar="LOGFILE", help="the same")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="S",
        help="seconds to wait for other ranks (default: 30)",
    )  # fmt: skip
    parser.add_argument(
        "--no-self-test", action="store_true", help="start no ranks, and exchange nothing"
    )
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    """Report; exit status 1 where there is a problem."""
    log = chosen.log or chosen.log_option
    try:
        return _look(chosen) if log is None else _read(log, as_json=chosen.json)
    except Ended:
        trouble = "ended by SIGTERM before it had anything to report"
    except KeyboardInterrupt:
        trouble = "interrupted"
    except TimeIsUpError:
        trouble = (
            f"looking at this host did not end within {_LOOKING:g} s; see which of `nvidia-smi`,"
            " `df` and `getent hosts $(hostname)` does not end either"
        )
    return _leave(complain(_NAME, trouble))


def _look(chosen: argparse.Namespace) -> int:
    launch = find_launch(os.environ)
    several = launch is not None and launch.size > 1
    with Progress(_NAME) as progress, until_ended():
        if launch is not None and launch.rank:
            progress.silence()  # rank 0 speaks for all
        progress.tell("looking at this process, its host and its network", 0.0)
        # In a thread of its own, as all that may block: so signals are heard at any time.
        found = call_bounded(lambda: look(os.environ), _LOOKING)
        if launch is not None and several:
            return _together(launch, found, chosen, progress)
        findings = check(found)
        test = None if chosen.no_self_test else run_pair(os.environ, chosen.timeout, progress.tell)
    if test is not None and test.trial.error:
        what = "two ranks on this host cannot exchange"
        error = "\n".join(filter(None, (test.trial.error, test.output)))
        findings = without_echoes(findings, [explain(what, error)])
    return _report(found, findings, test, as_json=chosen.json)


# -- one process ------------------------------------------------------------------------------


def _report(
    found: Snapshot, findings: Sequence[Finding], test: PairTest | None, *, as_json: bool
) -> int:
    facts = sections(found)
    if test is not None:
        facts.append(selftest_section(test))
    if as_json:
        return _print_json(findings, facts, trial=None if test is None else asdict(test.trial))
    width = screen_width()
    if test is None:
        good = "No problem found; no ranks were started"
    else:
        good = f"All is well: two ranks exchange {speed(test.trial)}"
    lines = [*_head(found.host), summary(findings, good), (), *findings_lines(findings, width)]
    lines += [line for section in facts for line in section_lines(section, width)]
    show(lines)
    return _status(findings)


def _head(host: str) -> list[Line]:
    now = datetime.now().astimezone().strftime("%d %b %Y %H:%M")
    return [(Span("torch-collectives doctor", "title"), Span(f"  {host}, {now}", "label"))]


def _status(findings: Iterable[Finding]) -> int:
    return int(any(finding.severity == "problem" for finding in findings))


def _print_json(findings: Sequence[Finding], facts: Sequence[Section], **more: object) -> int:
    found = {
        "ok": not _status(findings),
        "findings": [asdict(finding) for finding in findings],
        **more,
        "facts": {section.title: dict(section.rows) for section in facts},
    }
    say(json.dumps(found, indent=2))
    return _status(findings)


# -- all ranks of a job -----------------------------------------------------------------------


def _together(
    launch: Launch, found: Snapshot, chosen: argparse.Namespace, progress: Progress
) -> NoReturn:
    """Report what all ranks found, on rank 0; end the process, since its group stays."""
    report = RankReport(launch.rank, rank_facts(found), tuple(check(found)))
    job = Job(launch, report)
    longest = 4 * chosen.timeout + _SPARE
    _end_at_last(longest + _LAST)
    trouble = ""
    try:
        try:
            call_bounded(
                lambda: meet(
                    launch,
                    job,
                    report,
                    seconds=chosen.timeout,
                    tell=progress.tell,
                    exchange=not chosen.no_self_test,
                    patience=_patience(found),
                ),
                longest,
            )
        finally:
            # Once a rank has failed, torchrun ends the others: the report is to come out whole.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except CollectivesError as error:
        trouble = str(error)
    except TimeIsUpError:
        trouble = f"no end within {longest:g} s"
    except Ended:  # since another rank failed; what rank 0 knows by now is worth a report
        trouble = "" if launch.rank == 0 else _ENDED
    progress.close()
    if launch.rank == 0:
        job.trouble = trouble
        _leave(_report_job(found, job, as_json=chosen.json))
    if trouble:
        _report_lonely_rank(launch, report, trouble)
    _leave(int(bool(trouble)))


def _report_job(found: Snapshot, job: Job, *, as_json: bool) -> int:
    findings = job.findings()
    reports = [job.reports[rank] for rank in sorted(job.reports)]
    facts = sections(found)
    if as_json:
        return _print_json(findings, facts, ranks=[asdict(one) for one in reports],
                           missing=job.missing)  # fmt: skip
    width, size = screen_width(), job.launch.size
    tried = any(one.trial is not None and one.trial.small for one in reports)
    good = f"All is well: {size} ranks {'exchange the right values' if tried else 'have met'}"
    lines = [*_head(found.host), summary(findings, good), ()]
    lines += findings_lines(findings, width, size)
    lines += ranks_lines(reports, job.missing, width, met=not job.trouble)
    for section in facts:
        named = section._replace(title=f"{section.title} (rank 0)")
        lines += section_lines(named, width)
    show(lines)
    return _status(findings)


def _report_lonely_rank(launch: Launch, report: RankReport, trouble: str) -> None:
    """Say on stderr what rank 0 will not hear of."""
    finding = explain(f"rank {launch.rank} cannot tell rank 0 what it found", trouble)
    findings = without_echoes(report.findings, [finding])
    lines = [*_head(report.facts["host"]), summary(findings, ""), ()]
    show([*lines, *findings_lines(findings, screen_width())], sys.stderr)


def _patience(found: Snapshot) -> float:
    """Return for how long a listener may say nothing: a store looks up who connects, first.

    Args:
        found: With how long the same took here.
    """
    lookups = [found.name, *([] if found.master is None else [found.master])]
    return PATIENCE + 4 * max(max(one.seconds, one.back_seconds) for one in lookups)


def _end_at_last(seconds: float) -> None:
    """End the process whatever it hangs in, also where no Python runs any more."""

    def end() -> None:
        complain(_NAME, f"no end within {seconds:g} s: this process ends itself")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds + _LAST, exit=True, file=sys.__stderr__)


def _leave(status: int) -> NoReturn:
    """End the process without the farewells of torch's threads, which may wait for a rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# -- a log ------------------------------------------------------------------------------------


def _read(name: str, *, as_json: bool) -> int:
    try:
        if name == "-":
            reading = read_log(_stdin())
        else:
            with Path(name).open(encoding="utf-8", errors="replace", newline="\n") as file:
                reading = read_log(file)
    except OSError as error:
        return complain(_NAME, f"{name}: {error.strerror or error}; give a log of the training")
    if as_json:
        found = [{"line": s.number, "times": s.count, "text": s.line, **asdict(s.known)}
                 for s in reading.seen]  # fmt: skip
        facts = {"ok": not reading.errors, "lines": reading.lines, "known": found}
        say(json.dumps(facts, indent=2))
    else:
        show([*log_lines("stdin" if name == "-" else name, reading, screen_width())])
    return int(bool(reading.errors))


def _stdin() -> TextIO:
    """Return stdin, to be read as a file is: of any code, and a progress bar is one line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    return sys.stdin


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds above 0, got {text!r}; leave it out for 30"
        )
    return seconds
