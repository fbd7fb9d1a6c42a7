"""What a training log says is wrong: known texts, found line by line.

The texts are data: ``known_texts.json``, a list of what is known by which texts (``*`` is anything
within a line), what it means, what to do, and where it was reported. A *consequence* is the text of
a rank that another one has let down: the cause is elsewhere. A *hint* does harm in some jobs only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from .findings import Finding

__all__ = ["Known", "Reading", "Seen", "explain", "known_texts", "read_log", "recognise"]

_LONGEST_LINE = 4000  # characters that are looked at
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_LONGEST_QUOTE = 300
_KINDS = ("cause", "hint", "consequence")


@dataclass(frozen=True, slots=True)
class Known:
    """One thing that is known by its text.

    Args:
        name: Of it.
        kind: Whether it is where the trouble begins, may be, or is not.
        texts: Any of which is in a line; ``*`` stands for anything.
        title: What is wrong.
        means: What comes of it, or how it comes about; "" where the title says it all.
        remedy: What to do.
        see: Public reports.
    """

    name: str
    kind: Literal["cause", "hint", "consequence"]
    texts: tuple[str, ...]
    title: str
    means: str
    remedy: str
    see: tuple[str, ...]


@dataclass(slots=True)
class Seen:
    """Where a known text is in a log.

    Args:
        known: What it is.
        number: Of the first line that has it, from 1.
        line: That line.
        count: Lines that have it.
    """

    known: Known
    number: int
    line: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log says.

    Args:
        seen: Causes first, consequences last, each kind in the order of their first lines.
        lines: That were read.
    """

    seen: tuple[Seen, ...]
    lines: int

    @property
    def errors(self) -> int:
        """How many of them are more than hints."""
        return sum(seen.known.kind != "hint" for seen in self.seen)

    @property
    def has_cause(self) -> bool:
        """Whether one of them is where the trouble begins."""
        return any(seen.known.kind == "cause" for seen in self.seen)


@cache
def known_texts() -> tuple[Known, ...]:
    """Return the catalogue, the most exact texts first."""
    text = resources.files(__package__).joinpath("known_texts.json").read_text(encoding="utf-8")
    return tuple(
        Known(
            one["id"], one["kind"], tuple(one["texts"]), one["title"], one["means"], one["remedy"],
            tuple(one["see"]),
        )
        for one in json.loads(text)
    )  # fmt: skip


def recognise(line: str) -> Known | None:
    """Return what is known by a line; the first of the catalogue."""
    shown = line[:_LONGEST_LINE].lower()
    if not any(part in shown for part in _parts()):
        return None
    return next((known for known, pattern in _patterns() if pattern.search(shown)), None)


def read_log(lines: Iterable[str]) -> Reading:
    """Return the known texts in a log, whatever its length: nothing but them is kept.

    Args:
        lines: Of the log, of any ranks.

    Example:
        >>> reading = read_log(["ok", "RuntimeError: Connection closed by peer [10.0.0.3]:2318"])
        >>> [(seen.known.name, seen.number) for seen in reading.seen]
        [('gloo-closed-by-peer', 2)]
    """
    seen: dict[str, Seen] = {}
    number = 0
    for number, line in enumerate(lines, start=1):
        for part in line.split("\r"):  # a progress bar writes one line again and again
            known = recognise(part)
            if known is None:
                continue
            if known.name in seen:
                seen[known.name].count += 1
            else:
                seen[known.name] = Seen(known, number, _tidied(part))
    order = sorted(seen.values(), key=lambda one: (_KINDS.index(one.known.kind), one.number))
    return Reading(tuple(order), number)


def explain(what: str, error: str) -> Finding:
    """Return a finding for an error, with the remedy for its text where it is known.

    Args:
        what: Goes wrong.
        error: Its text.
    """
    lines = [" ".join(line.split()) for line in error.splitlines()]
    text = "\n".join(filter(None, lines))
    known = recognise(" ".join(lines))
    if known is None:
        return Finding("problem", what, "do what the text says", text)
    return Finding(
        "problem",
        f"{what}: {_lowered(known.title)}",
        known.remedy,
        text,
        known.see,
        topic=known.name,
    )


def _lowered(title: str) -> str:
    """Return the title as the end of a sentence; a name in capitals stays."""
    word = title.split(" ", 1)[0]
    return title if word[1:] != word[1:].lower() else title[:1].lower() + title[1:]


@cache
def _patterns() -> tuple[tuple[Known, re.Pattern[str]], ...]:
    return tuple((known, _pattern(known.texts)) for known in known_texts())


@cache
def _parts() -> tuple[str, ...]:
    """Return a part of each text: most lines of a log have none, and are done with at once."""
    texts = (text for known in known_texts() for text in known.texts)
    return tuple({max(text.lower().split("*"), key=len) for text in texts})


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(_escaped(text.lower()) for text in texts))


def _escaped(text: str) -> str:
    return ".{0,400}?".join(re.escape(part) for part in text.rstrip("*").split("*"))


def _tidied(line: str) -> str:
    text = _ESCAPE.sub("", line).strip()
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 4] + " ..."
