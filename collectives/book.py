"""The book in a store into which the ranks of a group write what they believe: no torch here.

A store may outlive the processes: torchrun's agent holds one for all attempts of a job. There is no
number of the attempt that all agents know (``TORCHELASTIC_RESTART_COUNT`` counts the failures that
one of them has seen), so the dead are told from the living by what these do. In a *lasting* book
only what was written after one's own first entry counts, and the living write theirs again for
those who came later: when the roll is called, which the first to see all ranks does (whoever came
first, at the latest), and now and then while ranks are missing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Protocol

from .errors import CollectivesError
from .facts import Entry

__all__ = ["Book", "StoreLike"]

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


class Book:
    """The entries of one generation, in the order in which they were written.

    Args:
        store: Of all ranks.
        key: Of this generation.
        mine: What this process believes.
        lasting: Whether others may have written there that are gone.
    """

    def __init__(self, store: StoreLike, key: str, mine: Entry, *, lasting: bool = False) -> None:
        self._store, self._key, self.mine = store, key, mine
        self._lasting = lasting
        self._last = 0  # the number of the last entry that was asked for
        self._unread: set[int] = set()
        self._latest: Entry | None = None  # what this process wrote last
        self._wrote = 0.0
        self._unanswered = False  # somebody has come since, who has not seen it
        self._interval = max(0.25, mine.facts.size / 100)  # many ranks: spare the one store
        # Before the first entry: whatever comes after it is to count.
        self._had_left = self._counter("left") if lasting else 0
        self._rolls = self._had_rolls = self._counter("roll") if lasting else 0
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Add an entry of this rank."""
        first = self._latest is None
        number = self._counter("entries", 1)
        self._store.set(f"{self._key}/{number}", entry._replace(again=not first).dump())
        self._latest, self._wrote, self._unanswered = entry, time.monotonic(), False
        if first and self._lasting:
            self._last = number - 1

    def read(self) -> bool:
        """Read what is new, and answer those who have come; whether there was anything."""
        rolls = self._counter("roll") if self._lasting else 0  # before the entries it is about
        new = self._new_entries()
        self.entries += new
        if self._lasting:
            self._unanswered |= any(self._is_newcomer(entry) for entry in new)
            late = time.monotonic() - self._wrote > self._interval
            if rolls > self._rolls or late:
                self._rolls = rolls
                self._answer()
        return bool(new)

    def all_are_here(self) -> None:
        """Say so to those who have not seen all."""
        if self._lasting:
            self._answer()
            if self._counter("roll") == self._had_rolls:
                self._counter("roll", 1)

    def leave(self, after: float = 0) -> None:
        """Tell that this rank reads no more, and wait until so many ranks have done so."""
        with suppress(RuntimeError, CollectivesError):  # the store may have ended: nobody to tell
            gone = self._counter("left", 1)
            deadline = time.monotonic() + _PARTING
            while gone - self._had_left < after and time.monotonic() < deadline:
                time.sleep(0.02)
                if self._lasting:
                    self.read()
                    self._answer()
                gone = self._counter("left")

    def _new_entries(self) -> list[Entry]:
        """Return what was not read yet; a number whose entry is being written is read later."""
        last = self._counter("entries")
        self._unread.update(range(self._last + 1, last + 1))
        self._last = last
        keys = {number: f"{self._key}/{number}" for number in sorted(self._unread)}
        if not keys or not self._store.check(list(keys.values())):
            keys = {number: key for number, key in keys.items() if self._store.check([key])}
        if not keys:
            return []
        self._unread.difference_update(keys)
        return list(map(Entry.load, self._store.multi_get(list(keys.values()))))

    def _is_newcomer(self, entry: Entry) -> bool:
        return not entry.again and entry.process.token != self.mine.process.token

    def _answer(self) -> None:
        """Show those who have come that this process is alive: they read nothing older."""
        if self._unanswered and self._latest is not None:
            self.write(self._latest)

    def _counter(self, name: str, amount: int = 0) -> int:
        return self._store.add(f"{self._key}/{name}", amount)
