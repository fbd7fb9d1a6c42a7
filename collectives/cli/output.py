"""How text gets to the terminal: whatever is in it, and whatever the terminal can show.

With ``rich`` (the extra [cli]) lines have colours where the terminal has; else they are plain.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TextIO

from ..doctor.screen import Line, Span, Style, plain

__all__ = ["Progress", "complain", "printable", "say", "screen_width", "show"]

# Records and logs come from anywhere: an escape sequence in one must not reach the terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_WIDEST = 100  # columns: longer lines are hard to read
_COLOURS: dict[Style, str] = {
    "": "",
    "title": "bold",
    "problem": "bold red",
    "warning": "bold yellow",
    "good": "bold green",
    "label": "dim",
    "remedy": "cyan",
    "see": "dim",
}


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


def screen_width() -> int:
    """Return the columns to write in: those of the terminal (or ``COLUMNS``), at most 100."""
    return max(30, min(shutil.get_terminal_size().columns, _WIDEST))


def show(lines: Sequence[Line], stream: TextIO | None = None) -> None:
    """Print styled lines, in colour where rich is installed and the terminal has colours."""
    stream = sys.stdout if stream is None else stream
    while lines and not lines[-1]:
        lines = lines[:-1]
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        say(plain(lines), stream)
        return
    console = Console(file=stream, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        say(plain(lines), stream)
        return
    styled = [[piece for span in line for piece in _pieces(span)] for line in lines]
    console.print(Text("\n").join(Text.assemble(*line) for line in styled))


def _pieces(span: Span) -> Iterator[tuple[str, str]]:
    """Yield a span with its style in rich's words; public reports become links."""
    text, style = printable(span.text), _COLOURS[span.style]
    if span.style != "see":
        yield text, style
        return
    for part in re.split(r"([\w.-]+/[\w.-]+#\d+)", text):
        place, _, number = part.partition("#")
        link = f" link https://github.com/{place}/issues/{number}" if number else ""
        yield part, style + link


class Progress:
    """Says on stderr what is waited for: in one line that changes, or a line for each thing.

    Args:
        command: Its name.
    """

    def __init__(self, command: str) -> None:
        self._command, self._last = command, ""
        self._moving, self._silent = sys.stderr.isatty(), False

    def __enter__(self) -> Progress:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the line."""
        self.close()

    def silence(self) -> None:
        """Say nothing from now on: another rank does."""
        self.close()
        self._silent = True

    def tell(self, what: str, seconds: float) -> None:
        """Say what is waited for, and for how many seconds by now."""
        if self._silent or (not self._moving and what == self._last):
            return
        self._last = what
        if self._moving:
            text = printable(f"{self._command}: {what} ({seconds:.0f} s)")[: screen_width() - 1]
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        else:
            say(f"{self._command}: {what}", sys.stderr)

    def close(self) -> None:
        """Clear the line, so that the screen begins where it stood."""
        if self._moving and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._last = ""
