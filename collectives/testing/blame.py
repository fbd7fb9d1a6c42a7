"""The text of a failed run: who began, and where the others were."""

from __future__ import annotations

from collections.abc import Mapping

from . import worker
from .wire import Ending

__all__ = ["describe", "main_thread"]


def describe(endings: Mapping[int, Ending], started: float) -> str:
    """Return what happened on the ranks of a failed run, the likely cause first.

    Args:
        endings: How the program ended, by rank.
        started: When it was started, on the clock of :attr:`Ending.at`.
    """
    size = len(endings)
    first, *others = sorted(endings, key=lambda rank: _suspicion(endings[rank]))
    lines = _in_full(first, size, endings[first], started)
    for rank in others:
        ending = endings[rank]
        if ending.kind in ("died", "stuck"):
            lines += _in_full(rank, size, ending, started)
        elif ending.kind == "raised":
            # Most often this only says that the first one hung up.
            lines.append(f"rank {rank} failed after it: {_headline(ending.text)}")
        elif ending.kind == "skipped":
            lines.append(f"rank {rank} skipped: {ending.text}")
    return "\n".join(lines)


def main_thread(dump: str) -> str:
    """Return the main thread's stack from what faulthandler wrote, less the frames of the pool."""
    hidden = (f'"{worker.__file__}"', "/multiprocessing/", '"<string>"')
    stacks = [part for part in dump.split("\n\n") if "(most recent call first)" in part]
    lines = stacks[-1].splitlines() if stacks else []  # the main thread's comes last
    return "\n".join(line for line in lines if not any(h in line for h in hidden))


def _suspicion(ending: Ending) -> tuple[int, float]:
    """Sort the first cause to the front.

    A death comes before what it made others raise, although the pool may see it later. A rank
    that is stuck when others failed mostly waits for them.
    """
    order = {"died": 0, "raised": 1, "skipped": 1, "stuck": 2, "value": 3}
    return order[ending.kind], ending.at


def _in_full(rank: int, size: int, ending: Ending, started: float) -> list[str]:
    after = f"{ending.at - started:.2f} s"
    who = f"rank {rank} of {size}"
    if ending.kind == "raised":
        return [f"{who} failed first, after {after}", "", _rule(f"rank {rank}"), ending.text]
    if ending.kind == "skipped":
        return [f"{who} skipped, and others did not: {ending.text}"]
    if ending.kind == "stuck":
        head = f"{who} still ran after {after}"
        return [head, "", _rule(f"rank {rank} was here"), ending.text]
    return [f"{who} {ending.text}"]


def _headline(text: str) -> str:
    """Return the first line of the error at the end of a traceback."""
    lines = text.rstrip().splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] + 1 :] if frames else lines
    return next((line for line in after if not line.startswith(" ")), lines[-1])[:200]


def _rule(title: str) -> str:
    return f" {title} ".center(72, "-")
