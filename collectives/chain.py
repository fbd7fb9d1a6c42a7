"""The token chain: every rank runs the same exchanges in backward, whatever its own graph.

Autograd runs the backward of an exchange only if the loss depends on it. A rank whose loss does
not (a causal skip, a detached term, an output that nobody used) would leave its neighbours
waiting. So a hidden tensor without elements, the token, goes into each exchange and comes out of
it: exchange k + 1 depends on exchange k, whatever the data say, which fixes the order on every
device; and ``join(loss)`` makes the loss depend on the last token, so that all of them run. (JAX
calls such a thing an ordered effect, mpi4torch ``JoinDummies``.)

A chain is cut by ``join``, and by the first exchange after a backward has touched it: the next
step begins a chain of its own. What ran is known per exchange, so that one whose backward was left
out is found on the rank that left it out (:meth:`Chain.check`), by name. Counts are never
compared: several forwards before one backward, several losses, accumulation and metrics under grad
are legal. An exchange whose inputs need no gradient on this rank and whose outputs are not used
looks like a metric from here, and raises no alarm.

Inside a backward (a checkpoint that computes its block again, a double backward) exchanges are not
linked: they run in the order in which they were made, and every rank must use what arrives.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .errors import DeadExchange

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["Chain", "Record", "caller", "calling_place", "inside_backward", "place_in"]

# Exchanges under grad with neither backward nor join: each one keeps its graph alive.
WARN_AT = 1024

# Modules that callers do not know: this package, and torch, which calls it in autograd.
_INNER = (__name__.partition(".")[0] + ".", "torch.")

# Where code stands. Its line is looked up when it is read: in a long function that takes longer
# than all the rest of an exchange.
Place = tuple["CodeType | str", int]  # of compiled code, which knows its frames no more: file, line


class Record:
    """One exchange of a chain.

    Args:
        op: The operation in words.
        place: Of the caller.
        wanted: Whether an input needs a gradient on this rank.
    """

    __slots__ = ("op", "place", "ran", "segment", "wanted")

    def __init__(self, op: str, place: Place | None, *, wanted: bool) -> None:
        self.op, self.place, self.wanted = op, place, wanted
        self.ran = False
        self.segment: Segment | None = None

    def run(self, chain: Chain) -> None:
        """Note that its backward runs.

        One that is differentiated itself (``create_graph``, as for a gradient penalty) keeps its
        graph for the loss that is to come: the chain goes on.
        """
        self.ran = True
        segment = self.segment
        if segment is not None and not segment.touched and not torch.is_grad_enabled():
            segment.touched = True
            chain.touch(segment)

    @property
    def where(self) -> str:
        """``file:line`` of the caller."""
        return _in_words(self.place)

    def __str__(self) -> str:
        return f"{self.op} at {self.where}"


class Segment:
    """The exchanges between two cuts of a chain."""

    __slots__ = ("numbered", "records", "touched")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.numbered: dict[int, Record] = {}  # those of compiled code
        self.touched = False

    @property
    def settled(self) -> bool:
        """Whether every backward ran."""
        return all(record.ran for record in self.records)


class Chain:
    """The exchanges of one group on this rank, in the order of their forward calls.

    ``token`` is what goes into the next exchange. ``root`` is the leaf that all exchanges depend
    on: ``autograd.grad`` towards it runs them all.
    """

    chained = True  # unlike what stands in for a chain in graphs that are kept

    def __init__(self) -> None:
        # Saved by every node: no bytes. A group may be used first in inference mode (a sanity
        # check), where it would be a tensor that no later node can save.
        with torch.inference_mode(mode=False):
            self.root = torch.empty(0, requires_grad=True, device="cpu")
            # Of compiled code, which reads and writes it (and the token, and whether they were
            # joined) as it is: the number of its last exchange, after which the next one comes.
            self.ticket = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.token = self.root
        self.joined = False
        # That of a chain which a backward has touched, until something begins the next one.
        self._spent: Tensor | None = None
        self._segment = Segment()
        self._earlier: list[Segment] = []

    def link(self, record: Record) -> Tensor:
        """Add an exchange and return the token that goes into it."""
        if inside_backward():
            # A checkpoint computes its block again. Linked to anything before it, the block's own
            # backward would run that a second time.
            return self.root
        if self._segment.touched or self.joined:
            self.cut()
        segment = record.segment = self._segment
        segment.records.append(record)
        if len(segment.records) == WARN_AT:
            warnings.warn_explicit(
                f"{WARN_AT} exchanges under grad without backward(), join() or mark_step(): their"
                " graphs are kept alive; wrap evaluation in torch.no_grad(), or call"
                " exchange.mark_step() in the loop",
                UserWarning,
                *_file_and_line(record.place),
            )
        return self.token

    def link_compiled(self, record: Record, sequence: int) -> None:
        """Add an exchange of compiled code, which hands on the token by itself."""
        self.link(record)
        if record.segment is not None:
            record.segment.numbered[sequence] = record

    def find(self, sequence: int) -> Record | None:
        """Return the exchange of compiled code that has this number, if it is still known."""
        for segment in (self._segment, *reversed(self._earlier)):
            if sequence in segment.numbered:
                return segment.numbered[sequence]
        return None

    def advance(self, record: Record, token: Tensor) -> None:
        """Take the token that came out of an exchange, if it was linked."""
        if record.segment is not None:
            self.token = token

    def excuse(self, op: str) -> None:
        """Note that the input of an operation needs no gradient on this rank.

        Where one operation takes several exchanges, what the first brought makes those after it
        look as if an input of this rank's needed one.
        """
        records = self._segment.records
        if records and records[-1].op == op:
            records[-1].wanted = False

    def unlink(self, record: Record) -> None:
        """Take an exchange out again that raised before anything came of it."""
        if record.segment is not None:
            record.segment.records.remove(record)

    def cut(self) -> None:
        """Begin a new chain; the old one is still checked."""
        if self._segment.records:
            self._earlier.append(self._segment)
            self._segment = Segment()
        # Segments that ran as a whole have nothing more to tell.
        if len(self._earlier) > 1:
            self._earlier = [s for s in self._earlier if not s.settled][-WARN_AT:]
        self.token, self._spent, self.joined = self.root, None, False

    def touch(self, segment: Segment) -> None:
        """Note that a backward has touched a part of the chain: what comes begins a new one."""
        if segment is self._segment:
            self._spent, self.token = self.token, self.root

    def take(self) -> Tensor | None:
        """Return the last token and cut the chain.

        Returns:
            ``None`` if nothing was exchanged, or all of it has run backward and its graph is gone:
            a fold that was backpropagated without ``join``, as it may be.
        """
        if not self._segment.records or self.joined:
            return None
        token = self.token if self._spent is None else self._spent
        over = self._segment.touched and self._segment.settled and _is_freed(token)
        self.cut()
        return None if over else token

    def skipped_after(self, record: Record) -> list[Record]:
        """Return the exchanges after ``record`` that its backward should have run before it."""
        if record.segment is None:
            return []
        records = record.segment.records
        return [r for r in records[records.index(record) + 1 :] if not r.ran]

    def check(self) -> None:
        """Raise if only a part of a chain ran backward; forget everything else.

        Raises:
            DeadExchange: Names what did not run.
        """
        self.cut()
        segments, self._earlier = self._earlier, []
        for segment in segments:
            dead = [r for r in segment.records if r.wanted and not r.ran]
            ran = next((r for r in segment.records if r.ran), None)
            if dead and ran is not None:
                raise DeadExchange(
                    f"the backward of {dead[0]} did not run on this rank, while that of {ran} did:"
                    " the loss does not depend on its output, and ranks whose loss does would wait"
                    " for ever. Tie all exchanges to the loss: loss = exchange.join(loss); or"
                    " exchange under torch.no_grad() what needs no gradient"
                )


def _is_freed(token: Tensor) -> bool:
    """Whether the node that a token came out of has no graph any more."""
    if token.grad_fn is None:  # the root, which exchanges in a compiled checkpoint leave as it is
        return False
    try:
        token.grad_fn._raw_saved_tensors  # type: ignore[attr-defined]  # noqa: B018 - raises
    except RuntimeError:
        return True
    return False


def inside_backward() -> bool:
    """Whether this thread runs a backward: what is exchanged now is computed again, or adjoint."""
    return torch._C._current_graph_task_id() != -1


def caller() -> str:
    """Return ``file:line`` of the code that called this package."""
    return _in_words(calling_place())


def calling_place(inner: int = 0) -> Place | None:
    """Return where the code stands that called this package.

    Args:
        inner: So many frames above this function's are known to be ours.
    """
    frame = _leave(sys._getframe(inner + 1))
    return None if frame is None else (frame.f_code, frame.f_lasti)


def _in_words(place: Place | None) -> str:
    file, line = _file_and_line(place)
    return f"{file}:{line}"


def _file_and_line(place: Place | None) -> tuple[str, int]:
    if place is None:
        return "?", 0
    code, offset = place
    if isinstance(code, str):
        return code, offset
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return code.co_filename, next(lines, None) or code.co_firstlineno


def place_in(frame: FrameType) -> str:
    """Return ``file:line`` of the innermost code on that stack that is not of this package."""
    outside = _leave(frame)
    return "" if outside is None else f"{outside.f_code.co_filename}:{outside.f_lineno}"


def _leave(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside this package and torch."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_INNER):
        frame = frame.f_back
    return frame
