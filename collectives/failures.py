"""From an error of the transport to one that says which exchange, why, and what to do.

gloo's own texts name no rank, no operation and no tensor. What other ranks found out comes from the
guard; where there is none, what this rank knows must do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .chain import caller
from .errors import (
    CollectivesError,
    ExchangeError,
    ExchangeMismatch,
    ExchangeTimeout,
    PeerLost,
)
from .guard import Cause, Guard
from .record import dump, take
from .transport.group import failure_kind

if TYPE_CHECKING:
    from .engine import Engine
    from .flight import Flight

__all__ = ["failure_of"]

Kind = Literal["timeout", "lost", "other"]

_SAME = (
    "All ranks must call the same exchanges in the same order, with the same shapes, dtypes, grad"
    " mode and mark_step numbers"
)
_CLASSES: dict[str, type[ExchangeError]] = {
    "mismatch": ExchangeMismatch,
    "timeout": ExchangeTimeout,
    "other": ExchangeError,
}
# Seconds to wait for the rank that knows more: its note is written before it breaks its own
# connections, which is what this rank notices.
_ASK = {"timeout": 0.05, "lost": 0.3, "other": 0.3}


def failure_of(engine: Engine, flight: Flight, error: BaseException) -> BaseException:
    """Return what to raise for an error of the transport, and tell the other ranks.

    The group cannot be used after it: a gloo pair that has timed out is closed, and what came next
    would fail with a text that hides the cause.

    Args:
        engine: That runs the exchange.
        flight: The exchange.
        error: Of the transport.
    """
    state = engine.state
    where = flight.record.where if flight.record is not None else caller()
    signature = flight.call.signature(flight.sequence, state.step, where)
    guard = state.guard
    state.broken = state.broken or f"{signature} failed: {_first_line(error)}"
    state.wreck = flight  # its buffers may still be written to
    state.waiting = None
    hint = _skipped(engine, flight)
    here = f"(rank {engine.rank} of {engine.size})"
    if isinstance(error, CollectivesError):
        record = ""
        if guard is not None and isinstance(error, ExchangeMismatch):
            guard.report("mismatch", str(error))  # ranks that are no neighbours only wait
            record = _record(engine, str(error))
        more = ". ".join(filter(None, [hint, record]))
        said = str(error) if here in str(error) else f"{error} {here}"
        return type(error)(f"{said}. {more}") if more else error
    if not isinstance(error, Exception):
        if guard is not None:
            guard.report("interrupted", f"rank {engine.rank} raised {type(error).__name__}")
            guard.interrupt()
        return error  # Ctrl-C and its like stay what they are
    kind = failure_kind(error)
    elapsed = f"after {flight.elapsed:.2f} s of {flight.deadline.seconds:g} s {here}"
    cause = None if guard is None else guard.cause(_ASK[kind])
    if cause is None:
        cause, advice = _found_here(engine, flight, error)
        if guard is not None:
            told = f"{cause.text} (rank {engine.rank} was in {signature})"
            guard.report(cause.kind, told, cause.lost)
    else:
        advice = f"{_SAME}." if cause.kind == "mismatch" else ""
    if guard is not None:
        guard.interrupt()  # so that the neighbours need not wait for their own deadlines
    state.broken = f"{cause.text} [reported by rank {cause.rank}]"
    record = _record(engine, cause.text)
    by = "" if cause.rank == engine.rank else f" [reported by rank {cause.rank}]"
    sentences = [f"{signature} failed {elapsed}: {cause.text}{by}", hint, advice, record]
    between = "\n" if "\n" in cause.text else ". "
    return _CLASSES.get(cause.kind, PeerLost)(between.join(filter(None, sentences)))


def _record(engine: Engine, failure: str) -> str:
    """Write the flight record down and say where it is; nothing if it cannot be written."""
    rank, size, label = engine.rank, engine.size, engine.transport.label
    path = dump(take(engine.state, rank=rank, size=size, group=label, failure=failure))
    return "" if path is None else f"Flight record: {path}"


def _found_here(engine: Engine, flight: Flight, error: Exception) -> tuple[Cause, str]:
    """Return the cause as far as this rank can see, and advice."""
    guard, rank = engine.state.guard, engine.rank
    peers = _peers(engine, flight)
    names = " or ".join(map(str, peers))
    kind = failure_kind(error)
    if kind == "timeout":
        text = f"rank {rank} got no answer from rank {names} in {flight.deadline.seconds:g} s"
        known = [] if guard is None else [guard.whereabouts(peers)]
        advice = f"{_advice(flight, guard)}A slow rank needs a longer timeout="
        return Cause(kind, rank, "; ".join([text, *known])), advice
    if kind == "lost":
        left = "" if guard is None else guard.farewell(peers[0])
        if left:
            return Cause("left", rank, f"rank {peers[0]} {left}"), ""
        text = f"the connection of rank {rank} to rank {names} was closed"
        lost = peers[0] if len(peers) == 1 else -1
        advice = "Its process ended or gave up: its own output says why"
        return Cause(kind, rank, text, lost), advice
    return Cause(kind, rank, _first_line(error)), ""


def _peers(engine: Engine, flight: Flight) -> list[int]:
    """Return whom the failed message goes to or comes from; all peers, if that is not known."""
    ends, works = flight.ends(), list(flight.works)
    if engine.transport.batch is None and ends:
        if len(works) < len(ends):  # it failed while they were posted
            return [ends[len(works)]]
        if flight.awaited in works:
            return [ends[works.index(flight.awaited)]]
    return flight.call.peers


def _advice(flight: Flight, guard: Guard | None) -> str:
    # With a guard, ranks that wait in different exchanges have been found by now.
    same = f"{_SAME}. " if guard is None else ""
    if flight.call.verify == "off":
        same += "This rank has verify='off': do all of them? "
    if flight.call.phase == 0:
        return same
    return f"Does the loss of that rank depend on it (loss = exchange.join(loss))? {same}"


def _skipped(engine: Engine, flight: Flight) -> str:
    """Name the exchanges that this backward left out, if it did: others wait in them."""
    if flight.record is None or flight.call.phase == 0:
        return ""
    skipped = engine.state.chain.skipped_after(flight.record)
    if not skipped:
        return ""
    return (
        f"This rank never ran the backward of {skipped[0]}: its loss does not depend on"
        " it, so tie all exchanges to the loss: loss = exchange.join(loss)"
    )


def _first_line(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text.partition(". This is typically caused by")[0]  # gloo's own advice
