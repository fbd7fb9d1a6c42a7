"""Named ranges: what a profiler shows of an exchange.

Every exchange asks whether anybody looks, so the question must cost next to nothing: two attributes
are read where it is asked (``profiler._is_profiler_enabled or WATCHERS``), and all else is here.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

from torch.autograd import profiler

from .signature import PHASES

if TYPE_CHECKING:
    from .call import Call

__all__ = ["WATCHERS", "Watcher", "ranged"]

_LONGEST = 200  # letters: a permutation of many ranks would fill the screen

Part = Literal["", "post", "wait", "shapes"]


class Watcher(Protocol):
    """Somebody beside torch's own profilers who wants to know when an exchange begins and ends."""

    def profile(self, action_name: str, /) -> AbstractContextManager[object]:
        """Return what is entered for as long as the exchange takes."""
        ...


WATCHERS: list[Watcher] = []
"""Of all exchanges of this process; whoever adds itself takes itself out again."""


def ranged(call: Call, part: Part = "") -> AbstractContextManager[object]:
    """Return what makes a range of its block, for all who look.

    Args:
        call: That runs.
        part: Of a started exchange, which part of it: posting its messages, or waiting for them.
    """
    if not (profiler._is_profiler_enabled or WATCHERS):
        return nullcontext()
    name = range_name(call, part)
    stack = ExitStack()
    for watcher in WATCHERS:
        stack.enter_context(watcher.profile(name))
    if profiler._is_profiler_enabled:
        stack.enter_context(profiler.record_function(name))
    return stack


def range_name(call: Call, part: Part) -> str:
    """Return ``collectives::shift[offset=1,axis=ring] kv backward wait``.

    Alike for each run of an operation, so that a profiler can add them up: neither number nor
    shapes.
    """
    operation = re.sub(r"\((.*)\)", _in_brackets, call.plan.op.replace("'", ""))
    phase = "" if call.phase == 0 else PHASES[call.phase]
    words = (f"collectives::{operation[:_LONGEST]}", call.name, phase, part)
    return " ".join(filter(None, words))


def _in_brackets(arguments: re.Match[str]) -> str:
    return f"[{arguments[1].replace(', ', ',')}]"
