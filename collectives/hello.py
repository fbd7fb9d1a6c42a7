"""The ranks of a group agree, through a store, before they exchange anything: no torch here.

Every process writes one entry into a book that all read: which rank it claims, what it believes of
the group, which process it is. So two jobs at one address, a rank that two processes claim, and
ranks that disagree on the size or the topology are found by whoever reads, whatever number of
ranks it waits for. Who fails writes why, and the others stop waiting.

A book belongs to one *generation*: how often one process has greeted as one rank. Whoever greets
again turns the page; another process that claims a rank of the same page is one too many.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from .errors import CollectivesError, ContextError, ExchangeTimeout
from .facts import Entry, Facts, Process, absence, disagreement, this_process

__all__ = ["Greeting", "StoreLike", "decline", "greet"]

# The process that holds the store may be one whose greeting failed: it stays until the others have
# read why, but not longer than this, in seconds.
_PARTING = 1.0


class StoreLike(Protocol):
    """What is used of a ``torch.distributed.Store``; every call returns at once."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter that starts at 0, and return its new value."""
        ...

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have been written."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return the values of keys that have been written."""
        ...


class Greeting(NamedTuple):
    """What all ranks know once they have greeted each other, the same on all of them.

    Args:
        generation: How often each process has greeted as its rank under this label, from 1.
        run: Tells this greeting from every other, of any job.
    """

    generation: int
    run: str


def greet(
    store: StoreLike,
    facts: Facts,
    *,
    timeout: float,
    label: str,
    process: Process | None = None,
    stop: threading.Event | None = None,
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
        stop: Once set, this rank gives up within a second.

    Returns:
        What tells this greeting from others.

    Raises:
        ContextError: Ranks disagree; two processes claim one rank; another rank gave up for such a
            reason; the store holds what no rank wrote; or ``stop`` was set.
        ExchangeTimeout: A rank did not come in time. It is not known to be wrong: this is what any
            later exchange with it would raise.
    """
    me = this_process() if process is None else process
    generation = store.add(f"{label}/{me.token}/{facts.rank}", 1)
    book = _Book(store, f"{label}/{generation}", Entry.coming(facts, me))
    book.write(book.mine)
    try:
        _wait_for_all(book, timeout, stop or threading.Event())
    except CollectivesError as error:
        came = len({entry.process for entry in book.entries})
        book.leave(after=came if isinstance(error, ExchangeTimeout) else max(came, facts.size))
        raise
    book.leave()
    run = next(entry.run for entry in book.entries if entry.facts.rank == 0)
    return Greeting(generation, run)


def decline(store: StoreLike, facts: Facts, *, label: str, reason: str) -> None:
    """Tell ranks that greet, or will, that this one does not come; they raise ``reason``."""
    me = this_process()
    generation = store.add(f"{label}/{me.token}/{facts.rank}", 1)
    book = _Book(store, f"{label}/{generation}", Entry.coming(facts, me))
    book.write(book.mine.giving_up(reason, late=False))


class _Book:
    """The entries of one generation, in the order in which they were written."""

    def __init__(self, store: StoreLike, key: str, mine: Entry) -> None:
        self._store, self._key, self.mine = store, key, mine
        self._unread: set[int] = set()
        self._last = 0
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Add an entry of this rank."""
        number = self._store.add(f"{self._key}/entries", 1)
        self._store.set(f"{self._key}/{number}", entry.dump())

    def read(self) -> bool:
        """Read what is new; a number whose entry is still being written is read later."""
        last = self._store.add(f"{self._key}/entries", 0)
        self._unread.update(range(self._last + 1, last + 1))
        self._last = last
        keys = {number: f"{self._key}/{number}" for number in sorted(self._unread)}
        if not keys or not self._store.check(list(keys.values())):
            keys = {number: key for number, key in keys.items() if self._store.check([key])}
        if not keys:
            return False
        self._unread.difference_update(keys)
        self.entries += map(Entry.load, self._store.multi_get(list(keys.values())))
        return True

    def leave(self, after: int = 0) -> None:
        """Tell that this rank reads no more, and wait until so many ranks have done so."""
        with suppress(RuntimeError):  # the store may have ended: there is nobody to tell
            gone = self._store.add(f"{self._key}/left", 1)
            deadline = time.monotonic() + _PARTING
            while gone < after and time.monotonic() < deadline:
                time.sleep(0.02)
                gone = self._store.add(f"{self._key}/left", 0)


def _wait_for_all(book: _Book, timeout: float, stop: threading.Event) -> None:
    """Read until every rank has come and nobody objects; write down why if not."""
    size = book.mine.facts.size
    deadline = time.monotonic() + timeout
    pause, longest = 0.002, max(0.05, size / 2000)  # many ranks: spare the one store
    while True:
        over = time.monotonic() > deadline  # looked at before reading: the last look counts
        if book.read() and (trouble := disagreement(book.mine, book.entries)):
            _give_up(book, ContextError(trouble))
        _heed_others(book)
        present = {entry.facts.rank for entry in book.entries}
        if present.issuperset(range(size)):
            return
        if over:
            _give_up(book, ExchangeTimeout(absence(book.mine, present, timeout)))
        if stop.wait(pause):
            _give_up(book, ContextError(f"hello: this rank was stopped {book.mine.where}"))
        pause = min(1.5 * pause, longest)


def _give_up(book: _Book, error: CollectivesError) -> None:
    with suppress(RuntimeError):
        book.write(book.mine.giving_up(str(error), late=isinstance(error, ExchangeTimeout)))
    raise error


def _heed_others(book: _Book) -> None:
    """Raise what another rank has written before it gave up."""
    for entry in book.entries:
        if entry.failure:
            kind = ExchangeTimeout if entry.late else ContextError
            raise kind(
                f"hello: rank {entry.facts.rank} ({entry.process}) gave up: {entry.failure}"
                f" [told to {book.mine.where[1:-1]}]"
            )
