"""How long an exchange may take."""

from __future__ import annotations

import math
from datetime import timedelta

from .errors import ArgumentError

__all__ = ["Deadline", "deadline_of"]

_LONGEST = 1e8


class Deadline:
    """Seconds that one exchange may take, all its messages together."""

    __slots__ = ("full", "seconds")

    # A timedelta costs time to make: until so many seconds have gone, the whole is near enough.
    GRACE = 0.5

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.full = timedelta(seconds=seconds)

    def remaining(self, elapsed: float) -> timedelta:
        """Return what is left."""
        return timedelta(seconds=max(0.001, self.seconds - elapsed))


def deadline_of(seconds: object) -> Deadline:
    """Check a timeout.

    Raises:
        ArgumentError: It is not a positive, finite number.
    """
    number = float(seconds) if isinstance(seconds, int | float) else math.nan
    if isinstance(seconds, bool) or not 0 < number <= _LONGEST:
        raise ArgumentError(
            f"timeout must be a positive, finite number of seconds, got {seconds!r}; at most"
            f" {_LONGEST:.0e}, which is three years"
        )
    return Deadline(number)
