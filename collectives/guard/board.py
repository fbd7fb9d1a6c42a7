"""Where the ranks of a group leave notes for each other: a few keys of the rendezvous store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .account import Account, Cause, read_account, read_cause

if TYPE_CHECKING:
    pass

__all__ = ["Board", "StoreLike"]

_CAUSE = "cause"


class StoreLike(Protocol):
    """What is used of a torch store."""

    def set(self, key: str, value: str, /) -> None:
        """Write."""
        ...

    def get(self, key: str, /) -> bytes:
        """Read a key that is there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there; does not wait."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write unless somebody has; return what is there then."""
        ...


class Board:
    """Notes of one generation of one group.

    Every call goes to the store and may block without end, where its host is stopped: so all of
    them are made by the clerk.

    Args:
        store: With a prefix of this group and generation.
        rank: Of this process in the group.
    """

    def __init__(self, store: StoreLike, rank: int) -> None:
        self._store, self._rank = store, rank

    def publish(self, account: Account) -> None:
        """Tell where this rank stands."""
        self._store.set(f"account/{account.rank}", account.dumps())

    def account(self, rank: int) -> Account | None:
        """Return where that rank stood when it last said so."""
        text = self._read(f"account/{rank}")
        account = None if text is None else read_account(text)
        return account if account is not None and account.rank == rank else None

    def report(self, cause: Cause) -> Cause:
        """Tell why the group failed; return the cause that was there first."""
        text = self._store.compare_set(_CAUSE, "", cause.dumps())
        self._store.set(f"aware/{self._rank}", "")
        return read_cause(text) or cause

    def cause(self) -> Cause | None:
        """Return why the group failed, if anyone has said so."""
        text = self._read(_CAUSE)
        if text is None:
            return None
        self._store.set(f"aware/{self._rank}", "")
        return read_cause(text)

    def unaware(self, size: int) -> list[int]:
        """Return the ranks that have neither reported nor read the cause."""
        return self._without("aware", size)

    def call_for_renewal(self) -> None:
        """Say that this rank is ready for the next generation."""
        self._store.set(f"renew/{self._rank}", "")

    def calls_for_renewal(self, rank: int) -> bool:
        """Whether a rank is ready for the next generation."""
        return self._store.check([f"renew/{rank}"])

    def missing(self, size: int) -> list[int]:
        """Return the ranks that have not called for the next generation."""
        return self._without("renew", size)

    def _without(self, key: str, size: int) -> list[int]:
        return [rank for rank in range(size) if not self._store.check([f"{key}/{rank}"])]

    def _read(self, key: str) -> bytes | None:
        return self._store.get(key) if self._store.check([key]) else None
