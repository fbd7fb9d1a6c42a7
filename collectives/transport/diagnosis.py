"""Why no rank can go on, in words.

The simulator knows the last step of every rank, so it says exactly who waits for whom and what the
two do differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..signature import DISCOVERY

if TYPE_CHECKING:
    from ..signature import Signature
    from .mailbox import Message

__all__ = ["Progress", "explain_left_over", "explain_misfit", "explain_stall"]

_SHOWN = 8
_BACKWARD = ("backward", "double backward")


@dataclass(slots=True)
class Progress:
    """What one rank has done so far."""

    signature: Signature | None = None
    messages: int = 0
    exchanges: int = 0
    ended: bool = False
    _ran: set[tuple[int, str]] = field(default_factory=set)

    def announce(self, signature: Signature | None) -> None:
        """Count an exchange whose messages follow; None: they belong to none."""
        self.signature = signature
        if signature is not None and signature.phase != DISCOVERY:
            self.exchanges += 1
            self._ran.add((signature.sequence, signature.phase))

    def ran(self, signature: Signature) -> bool:
        """Whether this rank came as far as the exchange and phase of ``signature``."""
        return (signature.sequence, signature.phase) in self._ran

    @property
    def steps(self) -> int:
        """How far the rank came, in exchanges or, without any, in messages."""
        return self.exchanges or self.messages

    def __str__(self) -> str:
        """Return how far the rank came."""
        unit = "exchange" if self.exchanges else "message"
        return f"after {self.steps} {unit}{'' if self.steps == 1 else 's'}"


def explain_stall(
    waiting: Mapping[int, Message], progress: Sequence[Progress], posted: Iterable[Message]
) -> str:
    """Return why the ranks wait for ever.

    Args:
        waiting: For what, by rank: of every rank that has not ended.
        progress: Of every rank.
        posted: All messages without their other end.
    """
    size = len(progress)
    # Who is stuck first is nearest to the cause: the others are stuck because of it.
    stuck = sorted(
        waiting.values(), key=lambda message: (progress[message.rank].steps, message.rank)
    )
    awaited = sorted({message.peer for message in stuck})
    return _text(
        f"no rank can go on: {len(stuck)} of {size} ranks wait for what nobody will do",
        [
            f"rank {it.rank} of {size} waits for rank {it.peer} in {it.signature or it.what}"
            for it in stuck
        ],
        [f"rank {r} ended ({progress[r]})" for r in awaited if progress[r].ended],
        [
            f"unmatched: {it}"
            for it in posted
            if it.signature is None and waiting.get(it.rank) is not it
        ],
        list(dict.fromkeys(_causes(stuck, progress))),
        remedy="every rank must make the same exchanges in the same order",
    )


def explain_misfit(message: Message, other: Message) -> str:
    """Return why the two ends are not one message."""
    return _text(
        "the two ends of a message do not fit",
        [str(end) for end in sorted((message, other), key=lambda end: end.kind, reverse=True)],
        _differences(message, other),
        remedy="both ends must be of one exchange, with the same shape and dtype",
    )


def explain_left_over(messages: Sequence[Message]) -> str:
    """Return which messages have no other end although every rank has ended."""
    return _text(
        f"expected both ends of every message, got only one of {len(messages)}",
        [str(message) for message in messages],
        remedy="every send needs its receive, with the same peer and tag",
    )


def _text(what: str, *paragraphs: Sequence[str], remedy: str) -> str:
    lines = [line for paragraph in paragraphs for line in _some(paragraph)]
    return "\n  ".join([f"simulate: {what}", *lines, remedy])


def _some(lines: Sequence[str]) -> list[str]:
    more = [f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _causes(stuck: Sequence[Message], progress: Sequence[Progress]) -> Iterator[str]:
    """Yield how ranks and the peers that they wait for differ."""
    waiting = {message.rank: message for message in stuck}
    compared: set[frozenset[int]] = set()
    for message in stuck:
        mine, theirs = message.signature, waiting.get(message.peer)
        if mine is None:
            continue
        if not progress[message.peer].ran(mine) and _is_past(theirs, mine):
            yield (
                f"rank {message.peer} never ran the {mine.phase} of exchange #{mine.sequence}: "
                "did its loss reach it? loss = exchange.join(loss)"
            )
        pair = frozenset(message.edge)
        if theirs is not None and pair not in compared:
            compared.add(pair)
            yield from _differences(message, theirs)


def _is_past(theirs: Message | None, mine: Signature) -> bool:
    """Whether my peer, now at ``theirs``, will not come to my backward any more."""
    if mine.phase not in _BACKWARD:
        return False
    signature = theirs and theirs.signature
    if not signature:  # it has ended, or exchanges no more
        return True
    if signature.phase == mine.phase:  # backwards run last to first
        return signature.sequence < mine.sequence
    return signature.sequence > mine.sequence


def _differences(message: Message, other: Message) -> list[str]:
    mine, theirs = message.signature, other.signature
    if mine is None or theirs is None:
        return []
    ranks = f"rank {message.rank} / rank {other.rank}"
    lines = [f"{ranks} differ in {'; '.join(d)}"] if (d := mine.differences(theirs)) else []
    if "grad" in mine.differing(theirs):
        lines.append(
            f"rank {message.rank} exchanges under {mine.grad}, rank {other.rank} under "
            f"{theirs.grad}: use one grad mode on all ranks"
        )
    return lines
