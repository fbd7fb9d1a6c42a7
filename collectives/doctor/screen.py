"""The screen, as lines of styled text for a terminal of some width; no colour is decided here.

Problems come first, each with what to do; then tables. A narrow terminal gets the same words under
one another.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from ..record.words import ranks_in_words
from .findings import Finding
from .logs import Reading, Seen
from .rank import RankReport
from .wording import Section, duration

__all__ = ["Line", "Span", "Style", "findings_lines", "log_lines", "plain", "ranks_lines",
           "section_lines", "summary"]  # fmt: skip

Style = Literal["", "title", "problem", "warning", "good", "label", "remedy", "see"]

_MARGIN = 9  # columns of PROBLEM and WARNING
_LABEL = 19
_NARROW = 60
_LABELS = {"cause": "ALSO", "hint": "MAYBE", "consequence": "FOLLOWS"}
_LOUD = ("PROBLEM", "WARNING", "CAUSE", *_LABELS.values())
_RESULTS: dict[str, Style] = {"ok": "good", "not tried": ""}
_HARD = "\xa0"  # a space that no line is broken at


class Span(NamedTuple):
    """A piece of a line."""

    text: str
    style: Style = ""


Line = tuple[Span, ...]


def plain(lines: Iterable[Line]) -> str:
    """Return lines without any style."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def summary(findings: Sequence[Finding], good: str) -> Line:
    """Return how many there are of each kind; or what is said where there is no problem."""
    problems = sum(finding.severity == "problem" for finding in findings)
    warnings = len(findings) - problems
    counts = ((problems, "problem"), (warnings, "warning"))
    parts = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts if count]
    if problems:
        return (Span(", ".join(parts), "problem"),)
    said = Span(good, "good")
    return (said, Span(f" ({parts[0]})", "warning")) if parts else (said,)


def findings_lines(findings: Iterable[Finding], width: int, size: int = 1) -> Iterator[Line]:
    """Yield each finding with its remedy, an empty line after each.

    Args:
        findings: In their order.
        width: Of the terminal, in columns.
        size: Ranks of the job: a finding of all of them names none.
    """
    for finding in findings:
        some = finding.ranks and len(finding.ranks) < size
        where = f" ({ranks_in_words(finding.ranks).replace(chr(32), _HARD)})" if some else ""
        yield from _block(finding.severity.upper(), finding.title + where, finding.severity, width)
        yield from _answer(finding.detail, finding.remedy, finding.see, width)
        yield ()


def section_lines(section: Section, width: int) -> Iterator[Line]:
    """Yield a title and its rows, an empty line after them."""
    yield (Span(section.title, "title"),)
    margin = max(_LABEL, 2 + max((len(label) for label, _ in section.rows), default=0))
    for label, value in section.rows:
        yield from _row(label, value, margin + 2 if width >= _NARROW else 4, width)
    yield ()


def ranks_lines(
    reports: Sequence[RankReport], missing: Sequence[int], width: int, *, met: bool = True
) -> Iterator[Line]:
    """Yield the one table of all ranks: who they are, and how their exchange went.

    Args:
        reports: Of the ranks that told something.
        missing: The others.
        width: Of the terminal, in columns.
        met: The ranks could meet; else none of them came to exchange.
    """
    rows = [_rank_row(report, "did not end" if met else "did not meet") for report in reports]
    rows += [(str(rank), "?", "", "", "did not report", "", "") for rank in missing]
    rows.sort(key=lambda row: int(row[0]))
    head = ("rank", "host", "device", "gloo uses", "exchange", "4 B", "1 MiB")
    keep = [i for i in range(len(head)) if any(row[i] for row in rows)]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in keep]
    spare = width - sum(widths) - 2 * (len(widths) - 1)
    for position in (1, 3, 2):  # what is cut where the terminal is narrow
        if spare < 0 and position in keep:
            at = keep.index(position)
            cut = min(-spare, max(0, widths[at] - 8))
            widths[at] -= cut
            spare += cut
    yield (Span("Ranks", "title"),)
    for number, row in enumerate((head, *rows)):
        cells = [_cut(row[i], w).ljust(w) for i, w in zip(keep, widths, strict=True)]
        yield _rank_line(cells, row, keep, head=number == 0)
    yield ()


def _rank_line(cells: list[str], row: Sequence[str], keep: list[int], *, head: bool) -> Line:
    style: Style = "label" if head else ""
    result: Style = style or (_RESULTS.get(row[4], "problem"))
    spans = [Span(cell, result if i == 4 else style) for cell, i in zip(cells, keep, strict=True)]
    return tuple(part for span in spans for part in (span, Span("  ")))[:-1]


def _rank_row(report: RankReport, without_trial: str) -> tuple[str, ...]:
    facts, trial = report.facts, report.trial
    device = " ".join(filter(None, (facts.get("device", ""), facts.get("device name", ""))))
    if trial is None:
        ended = (without_trial, "", "")
    elif trial.error:
        ended = ("failed", "", "")
    elif not trial.small:
        ended = ("not tried", "", "")
    else:
        ended = ("ok", duration(trial.small), f"{trial.bandwidth / 1e9:.2g} GB/s")
    at = facts.get("interface", "")
    return (str(report.rank), facts.get("host", "?"), device, at, *ended)


def log_lines(name: str, reading: Reading, width: int) -> Iterator[Line]:
    """Yield what is known in a log, the likely cause first."""
    count = f"{reading.lines:,} line{'s' if reading.lines != 1 else ''}"
    yield Span(name, "title"), Span(f"  {count}", "label")
    for part in textwrap.wrap(_what_a_log_says(reading), width):
        yield (Span(part, "problem" if reading.errors else "good"),)
    yield ()
    for number, seen in enumerate(reading.seen):
        first = number == 0 and reading.has_cause
        yield from _seen(seen, width, label="CAUSE" if first else "")
        known = seen.known
        yield from _answer(known.means, known.remedy, known.see, width)
        yield ()


def _what_a_log_says(reading: Reading) -> str:
    number = reading.errors
    if not number:
        return "No known error in it"
    what = f"{number} known error{'s' if number > 1 else ''}"
    if reading.has_cause:
        return what
    follow = "which follows" if number == 1 else "all of which follow"
    return f"{what}, {follow} from another: look for the cause in the other ranks' output"


def _seen(seen: Seen, width: int, label: str) -> Iterator[Line]:
    style: Style = "problem" if seen.known.kind == "cause" else "warning"
    label = label or _LABELS[seen.known.kind]
    yield from _block(label, seen.known.title, style, width)
    times = f"line {seen.number}" + (f" and {seen.count - 1} more" if seen.count > 1 else "")
    yield from _block("", f"{times}: {seen.line}", "label", width)


def _answer(detail: str, remedy: str, see: Sequence[str], width: int) -> Iterator[Line]:
    for line in detail.splitlines():
        yield from _block("", line, "", width)
    yield from _block("   do", remedy[:1].upper() + remedy[1:], "remedy", width)
    if see:
        yield from _block("   see", ", ".join(see), "see", width)


def _block(label: str, text: str, style: Style, width: int) -> Iterator[Line]:
    """Yield text beside its label, or under it where there is no room."""
    shown: Style = style if label in _LOUD else "label"
    margin = _MARGIN if width >= _NARROW else 2
    if margin < _MARGIN and label.strip():
        yield (Span(label.strip(), shown),)
        label = ""
    wrapped = textwrap.wrap(text, max(20, width - margin), break_on_hyphens=False) or [""]
    for number, part in enumerate(wrapped):
        head = label.ljust(margin) if number == 0 else " " * margin
        yield Span(head, shown), Span(part.replace(_HARD, " "), style)


def _row(label: str, value: str, margin: int, width: int) -> Iterator[Line]:
    head = f"  {label}"
    room = max(20, width - margin)
    wrapped = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
    if len(head) >= margin:
        yield (Span(head, "label"),)
        head = ""
    for number, part in enumerate(wrapped):
        yield Span(head.ljust(margin) if number == 0 else " " * margin, "label"), Span(part)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."
