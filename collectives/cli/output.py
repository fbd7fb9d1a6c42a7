"""How text gets to the terminal: whatever is in it, and whatever the terminal can show."""

from __future__ import annotations

import re
import sys
from typing import TextIO

__all__ = ["complain", "printable", "say"]

# Records and logs come from anywhere: an escape sequence in one must not reach the terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return ``text`` with ``?`` for what is neither a letter nor white space.

    Example:
        >>> printable("red: \x1b[31m")
        'red: ?[31m'
    """
    return _UNPRINTABLE.sub("?", text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print ``text``; letters that the stream has no code for become ``?``."""
    stream = sys.stdout if stream is None else stream
    code = stream.encoding or "utf-8"
    shown = printable(text).encode(code, errors="replace").decode(code)
    print(shown, file=stream, flush=True)


def complain(command: str, text: str) -> int:
    """Say on stderr why a command cannot do what it is asked; return its exit status, 1."""
    say(f"{command}: {text}", sys.stderr)
    return 1
