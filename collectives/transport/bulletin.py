"""Notes that the ranks of a job leave for rank 0 before, and whether or not, they have a group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch.distributed import (  # type: ignore[attr-defined]  # documented, but not listed
    PrefixStore,
    Store,
)

from ..errors import ContextError
from ..launcher import Launch, restart_count
from .stopwatch import Stopwatch, TimeIsUpError, call_bounded
from .store import meeting

__all__ = ["Bulletin", "bulletin"]

_ANSWER_S = 5.0  # seconds for the store to answer; a frozen one never does
_TICK_S = 0.1


class Bulletin:
    """Where the notes hang; every call is bounded.

    Args:
        store: That the ranks share.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, kind: str, rank: int, text: str) -> None:
        """Leave a note.

        Raises:
            ContextError: The store does not answer.
        """
        self._ask(lambda: self._store.set(f"{kind}/{rank}", text))

    def collect(
        self,
        kind: str,
        ranks: Sequence[int],
        seconds: float,
        tell: Callable[[Sequence[int]], None],
    ) -> dict[int, str]:
        """Return the notes of those ranks that leave one in time.

        Args:
            kind: As posted.
            ranks: Whose notes are wanted.
            seconds: How long to wait for them.
            tell: Is told, again and again, who is missing.

        Raises:
            ContextError: The store does not answer.
        """
        found: dict[int, str] = {}
        deadline = time.monotonic() + seconds
        while True:
            for rank in (rank for rank in ranks if rank not in found):
                text = self._ask(lambda rank=rank: self._read(f"{kind}/{rank}"))  # type: ignore[misc]
                if text is not None:
                    found[rank] = text
            missing = [rank for rank in ranks if rank not in found]
            if not missing or time.monotonic() > deadline:
                return found
            tell(missing)
            time.sleep(_TICK_S)

    def _read(self, key: str) -> str | None:
        if not self._store.check([key]):
            return None
        data: bytes = self._store.get(key)
        return data.decode(errors="replace")

    @staticmethod
    def _ask(question: Callable[[], str | None]) -> str | None:
        try:
            return call_bounded(question, _ANSWER_S)
        except (TimeIsUpError, RuntimeError) as error:
            why = str(error) or f"nothing within {_ANSWER_S:g} s"
            raise ContextError(
                f"the store of rank 0 does not answer: {why}; see the output of rank 0"
            ) from error


@contextmanager
def bulletin(launch: Launch, seconds: float) -> Iterator[Bulletin]:
    """Open the store at which the ranks of a job meet.

    Called by every rank of the job. Rank 0 must stay until it has read all that it wants.

    Args:
        launch: Which process this is.
        seconds: How long to wait for rank 0.

    Raises:
        ContextError: Nobody says where rank 0 is, it is not there, or another program is.
    """
    watch = Stopwatch(seconds)
    # Not under the name by which the job itself will meet on this host.
    apart = launch._replace(job=f"notes-{launch.job or f'parent-{os.getppid()}'}")
    with meeting(apart, watch) as place:
        if place.taken:
            raise ContextError(place.taken)
        yield Bulletin(PrefixStore(f"notes/{restart_count(os.environ)}", place.store))
