"""Ranks, moments and times in words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

__all__ = ["moment", "ranks_in_words", "seconds_in_words"]


def ranks_in_words(ranks: Iterable[int], word: str = "rank") -> str:
    """Return ranks as one reads them.

    Example:
        >>> ranks_in_words([2]), ranks_in_words([0, 1, 3]), ranks_in_words([0, 1, 2, 3, 4, 7])
        ('rank 2', 'ranks 0, 1 and 3', 'ranks 0..4 and 7')
    """
    numbers = sorted(set(ranks))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
    words = " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)
    return f"{word}{'s' if len(numbers) > 1 else ''} {words}" if word else words


def moment(clock: float) -> str:
    """Return the time of day, in the zone of whoever reads."""
    try:
        return datetime.fromtimestamp(clock).astimezone().strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):  # of a clock that is far off
        return f"{clock:g}"


def seconds_in_words(seconds: float) -> str:
    """Return a time span with as many digits as it deserves.

    Example:
        >>> seconds_in_words(0.0042), seconds_in_words(3.21), seconds_in_words(299.97)
        ('4 ms', '3.2 s', '300 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
