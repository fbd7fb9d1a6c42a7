"""What a user sets by ``COLLECTIVES_...`` variables: no torch here.

All are looked at when an Exchange is bound, so that a mistake is an error then, on every rank, and
not a setting that is silently left out when it is needed. An empty variable counts as not set. The
doctor looks at the same table.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import ArgumentError

__all__ = [
    "SETTINGS",
    "check_settings",
    "heeded_signals",
    "record_choice",
    "same_host",
    "stall_limit",
]

_STALL = "COLLECTIVES_STALL"
_SIGNALS = "COLLECTIVES_SIGNALS"
_RECORD = "COLLECTIVES_FLIGHT_RECORD"
_SAME_HOST = "COLLECTIVES_SAME_HOST"
_UNHEARD = {"SIGKILL", "SIGSTOP"}


def check_settings(environ: Mapping[str, str]) -> None:
    """Raise for a variable that says nothing sensible.

    Raises:
        ArgumentError: Names the variable, its value and what is allowed.
    """
    for read in SETTINGS.values():
        read(environ)


def stall_limit(environ: Mapping[str, str]) -> float:
    """Return the seconds after which a wait is looked into: ``COLLECTIVES_STALL``, or 1.

    Raises:
        ArgumentError: It is no number of seconds.
    """
    text = environ.get(_STALL) or "1"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _refused(_STALL, text, "a number of seconds above 0, such as 0.5")
    return seconds


def heeded_signals(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the signals that end a wait: ``COLLECTIVES_SIGNALS``, or SIGINT and SIGTERM.

    Raises:
        ArgumentError: One of them has no such name here, or ends a process that never hears of it.
    """
    text = environ.get(_SIGNALS) or "SIGINT SIGTERM"
    if text.strip().lower() == "off":
        return frozenset()
    known = {n: s for n, s in signal.Signals.__members__.items() if n not in _UNHEARD}
    names = text.replace(",", " ").split()
    if not names or any(name not in known for name in names):
        allowed = 'names of signals, such as "SIGINT SIGTERM", or "off" for none'
        raise _refused(_SIGNALS, text, allowed)
    return frozenset(known[name] for name in names)


def record_choice(environ: Mapping[str, str]) -> str:
    """Return what ``COLLECTIVES_FLIGHT_RECORD`` says: a folder, "off", or "" for the default place.

    Raises:
        ArgumentError: It is no folder and cannot become one. A single word that is no folder yet
            ("of", "false", "0") is taken for a misspelt "off".
    """
    text = environ.get(_RECORD, "")
    if text.lower() in ("", "off"):
        return text.lower()
    allowed = '"off", or a folder that can be written to'
    try:
        folder = Path(text).expanduser().absolute()
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except (RuntimeError, OSError, ValueError) as error:  # no such user; a name that cannot be
        raise _refused(_RECORD, text, allowed) from error
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise _refused(_RECORD, text, allowed)
    if there != folder and Path(text).name == text:
        raise _refused(_RECORD, text, f"{allowed} (./{text} for a new one here)")
    return str(folder)


def same_host(environ: Mapping[str, str]) -> bool:
    """Return whether ranks of one host may leave gloo aside: ``COLLECTIVES_SAME_HOST``, or on.

    Raises:
        ArgumentError: It is neither "on" nor "off".
    """
    text = environ.get(_SAME_HOST) or "on"
    if text not in ("on", "off"):
        raise _refused(_SAME_HOST, text, '"on" or "off"')
    return text == "on"


SETTINGS: Mapping[str, Callable[[Mapping[str, str]], object]] = {
    _STALL: stall_limit,
    _SIGNALS: heeded_signals,
    _RECORD: record_choice,
    _SAME_HOST: same_host,
}
"""Every variable of this library, and what reads it: raises an ArgumentError for nonsense."""


def _refused(name: str, value: str, allowed: str) -> ArgumentError:
    return ArgumentError(f"{name}: expected {allowed}, got {value!r}; correct it or leave it out")
