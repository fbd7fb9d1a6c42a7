"""The ranks of a group agree, through a store, before they exchange anything: no torch here.

Every process writes one entry into a book that all read: which rank it claims, what it believes of
the group, which process it is. So two jobs at one address, a rank that two processes claim, and
ranks that disagree on the size or the topology are found by whoever reads, whatever number of
ranks it waits for. Who fails writes why, and the others stop waiting.

A book belongs to one *generation*: how often one process has greeted as one rank. Whoever greets
again turns the page; another process that claims a rank of the same page is one too many.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from .book import Book, StoreLike
from .errors import CollectivesError, ContextError, ExchangeTimeout, PeerLost
from .facts import Entry, Facts, Process, absence, departure, disagreement, this_process

__all__ = ["Greeting", "Stop", "StoreLike", "decline", "greet"]

_KINDS = {kind.__name__: kind for kind in (ContextError, ExchangeTimeout, PeerLost)}
_PROBE = 0.5  # seconds between two looks at whether ranks that are missing have ended


class Stop(threading.Event):
    """Ends a greeting within a second, once it is set.

    ``error`` is what the greeting raises then, here and on the other ranks.
    """

    error: CollectivesError | None = None


class Greeting(NamedTuple):
    """What all ranks know once they have greeted each other, the same on all of them.

    Args:
        generation: How often each process has greeted as its rank under this label, from 1.
        run: Tells this greeting from every other, of any job: a name for what its ranks share.
        doors: Of each rank, where those of its host find it.
    """

    generation: int
    run: str
    doors: tuple[str, ...] = ()


def greet(
    store: StoreLike,
    facts: Facts,
    *,
    timeout: float,
    label: str,
    process: Process | None = None,
    stop: threading.Event | None = None,
    lasting: bool = False,
    lost: Callable[[int], bool] | None = None,
) -> Greeting:
    """Claim a rank, wait for all others, and compare what all believe.

    Called by every rank of the group, in any thread. Reads all entries, so that the store answers
    about size² small reads in all.

    Args:
        store: The same on all ranks.
        facts: Of this rank.
        timeout: How long to wait for the others, in seconds.
        label: What the group is called in the store; the same on all ranks.
        process: Who claims the rank; ``None``: this process.
        stop: Once set, this rank gives up within a second; see :class:`Stop`.
        lasting: The store may hold entries of processes that are gone. A second process of a rank
            is then named only if it comes while the others are still there.
        lost: Whether a rank is known to have ended; ``None``: that is not known of any.

    Returns:
        What tells this greeting from others.

    Raises:
        ContextError: Ranks disagree; two processes claim one rank; another rank gave up for such a
            reason; the store holds what no rank wrote; or ``stop`` was set.
        PeerLost: A rank has ended, or said that it will not come.
        ExchangeTimeout: A rank did not come in time. It is not known to be wrong: this is what any
            later exchange with it would raise.
    """
    me = this_process() if process is None else process
    generation = store.add(f"{label}/{me.token}/{facts.rank}", 1)
    book = Book(store, f"{label}/{generation}", Entry.coming(facts, me), lasting=lasting)
    book.write(book.mine)
    try:
        _wait_for_all(book, timeout, stop or threading.Event(), lost)
        book.all_are_here()
    except CollectivesError as error:
        came = len({entry.process for entry in book.entries})
        # Who comes later reads why by itself, unless the store is lasting: then this rank shows it.
        more = math.inf if lasting else max(came, facts.size)
        book.leave(after=came if isinstance(error, ExchangeTimeout) else more)
        raise
    book.leave()
    run = next(entry.run for entry in book.entries if entry.facts.rank == 0)
    doors = {entry.facts.rank: entry.facts.door for entry in book.entries}
    return Greeting(generation, run, tuple(doors[rank] for rank in range(facts.size)))


def decline(
    store: StoreLike, facts: Facts, *, label: str, reason: str, kind: type[CollectivesError]
) -> None:
    """Tell ranks that greet, or will, that this one does not come; they raise ``reason``."""
    me = this_process()
    generation = store.add(f"{label}/{me.token}/{facts.rank}", 1)
    book = Book(store, f"{label}/{generation}", Entry.coming(facts, me))
    book.write(book.mine.giving_up(reason, kind))


def _wait_for_all(
    book: Book, timeout: float, stop: threading.Event, lost: Callable[[int], bool] | None
) -> None:
    """Read until every rank has come and nobody objects; write down why if not."""
    size = book.mine.facts.size
    deadline, probe = time.monotonic() + timeout, time.monotonic() + _PROBE
    missing: list[int] = []
    pause, longest = 0.002, max(0.05, size / 2000)  # many ranks: spare the one store
    while True:
        # Looked at before reading: the last look counts, and who has ended may have come before.
        over, gone = time.monotonic() > deadline, list[int]()
        if lost is not None and time.monotonic() > probe:
            gone, probe = list(filter(lost, missing)), time.monotonic() + _PROBE
        if book.read() and (trouble := disagreement(book.mine, book.entries)):
            _give_up(book, ContextError(trouble))
        _heed_others(book)
        present = {entry.facts.rank for entry in book.entries}
        missing = [rank for rank in range(size) if rank not in present]
        if not missing:
            return
        if not present.issuperset(gone):
            gone = [rank for rank in gone if rank not in present]
            _give_up(book, PeerLost(departure(book.mine, gone)))
        if over:
            _give_up(book, ExchangeTimeout(absence(book.mine, present, timeout)))
        if stop.wait(pause):
            error = stop.error if isinstance(stop, Stop) else None
            text = f"hello: this rank was stopped {book.mine.where}"
            _give_up(book, error or ContextError(text))
        pause = min(1.5 * pause, longest)


def _give_up(book: Book, error: CollectivesError) -> None:
    with suppress(RuntimeError):
        book.write(book.mine.giving_up(str(error), type(error)))
    raise error


def _heed_others(book: Book) -> None:
    """Raise what another rank has written before it gave up."""
    for entry in book.entries:
        if entry.failure:
            raise _KINDS.get(entry.kind, ContextError)(
                f"hello: rank {entry.facts.rank} ({entry.process}) gave up: {entry.failure}"
                f" [told to {book.mine.where[1:-1]}]"
            )
