"""Looks after one group on this rank: what is wrong is found, and all ranks hear of it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from ..chain import place_in
from ..record import dump, take
from ..state import tag_mix
from ..trace import KEPT
from ..transport.group import failure_kind
from .account import Account, Cause, Elsewhere, Entry, entry_of
from .aside import Aside
from .judge import crossed, finished, judge
from .rollcall import Absent, await_none, call_roll
from .whereabouts import whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..flight import Flight
    from ..state import GroupState
    from ..trace import Trace
    from .board import Board
    from .clerk import Clerk

__all__ = ["Guard", "describe"]

# Seconds that a note may take: the store answers in well under a millisecond, or not at all.
_NOTE = 0.5
_PROBE = 1.0
_FIRST = 1.0  # that a rank which knows more may take to say so
_PATIENCE = 0.2  # that a wait may take to end by itself, once its connections are broken


class Guard:
    """The watch over one group.

    Args:
        rank: In the group.
        size: Of the group.
        state: What this rank has exchanged over it.
        board: Where ranks leave notes for each other.
        clerk: Who reads and writes them.
        interrupt: Breaks every wait of this rank in the group, from any thread; the group cannot
            be used after it.
        label: Of the group, for the flight record.
        lost: Whether the connection to a rank is known to be closed.
        alive: Whether the group still exists.
        guards: Returns those of all groups of this process.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        state: GroupState,
        board: Board,
        clerk: Clerk,
        *,
        label: str,
        interrupt: Callable[[], None],
        lost: Callable[[int], bool],
        alive: Callable[[], bool],
        guards: Callable[[], list[Guard]],
    ) -> None:
        self.rank, self.size, self.state, self.label = rank, size, state, label
        self.interrupt, self.alive, self._lost = interrupt, alive, lost
        self._guards = guards
        self._board, self._clerk = board, clerk
        self._published: Flight | None = None
        self._probed = 0.0
        self._aside: Aside | None = None
        self._cause: Cause | None = None
        self._left = ""
        self._elsewhere: Elsewhere | None = None
        self._closed: tuple[int, ...] = ()

    # -- called by the watchdog ------------------------------------------------------------------

    def look(self, stall: float) -> None:
        """See whether this rank is stuck, and why; what is proven breaks its wait."""
        flight = self.state.waiting
        if self._cause is not None:
            self._published = None
            return  # the wait has been broken
        if flight is None or time.monotonic() - flight.begun < stall:
            if flight is None and self._published is not None:
                self._published = None
                self._publish()
            return
        if self._published is not flight:
            self._published = flight
            self._publish()
        cause = self._clerk.ask(lambda: self._find_cause(flight), _NOTE) or self._probe(flight)
        if cause is not None and self.state.waiting is flight:
            self.fail(cause)

    def _find_cause(self, flight: Flight) -> Cause | None:
        cause = self._board.cause()
        if cause is not None:
            return cause
        mine = self._account(flight)
        for peer in flight.call.peers:
            theirs = self._board.account(peer)
            if theirs is None:
                continue
            verdict = judge(mine, theirs) or self._crossing(mine, theirs)
            if verdict is not None:
                return self._board.report(verdict)
        return None

    def _crossing(self, mine: Account, theirs: Account) -> Cause | None:
        """See whether a peer waits for this rank in another group; tell the ranks of that one."""
        away = theirs.elsewhere
        if away is None or not away.bound:
            return None
        for there in self._guards():
            if there.state.run == away.run and there.state.shares_thread(self.state):
                here, elsewhere = crossed(mine, theirs, there._account(None)) or (None, None)
                if elsewhere is not None:
                    there._board.report(elsewhere)
                return here
        return None

    def _probe(self, flight: Flight) -> Cause | None:
        """See, once a second, whether a peer died in the middle of a message."""
        now = time.monotonic()
        if now - self._probed < _PROBE:
            return None
        self._probed = now
        lost = [peer for peer in flight.call.peers if flight.needs(peer) and self._lost(peer)]
        known = self._clerk.ask(lambda: self._unfinished(flight, lost), _NOTE) if lost else None
        gone = lost if known is None else known
        if not gone or self.state.waiting is not flight:
            return None
        text = (
            f"the connection of rank {self.rank} to rank {gone[0]} was closed: its process ended or"
            " gave up, and its own output says why"
        )
        return self.report("lost", text, gone[0])

    def _unfinished(self, flight: Flight, peers: list[int]) -> list[int]:
        """Return those who have not said that they have moved all of this exchange."""
        mine = self._account(flight)
        accounts = {peer: self._board.account(peer) for peer in peers}
        return [peer for peer, theirs in accounts.items()
                if theirs is None or not finished(mine, theirs)]  # fmt: skip

    @property
    def stuck(self) -> Entry | None:
        """What this rank is stuck in."""
        flight = self._published
        return None if flight is None else self._entry(flight.trace, self._where(flight))

    def tell_elsewhere(self) -> None:
        """Tell the ranks of this group what this rank is stuck in, in another group."""
        found = [
            Elsewhere(other.state.run, other.rank, entry, other.state.shares_thread(self.state))
            for other in self._guards()
            if other is not self and (entry := other.stuck) is not None
        ]
        elsewhere = max(found, key=lambda where: where.bound, default=None)
        if elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self._publish()

    def fail(self, cause: Cause) -> None:
        """Break the waits of this rank; they raise ``cause``."""
        self._cause = cause
        self.state.broken = self.state.broken or cause.text
        self.interrupt()
        aside = self._aside
        if aside is not None:
            aside.give_up(_PATIENCE)

    # -- called by the thread that exchanges, and by whoever aborts -----------------------------

    def give_up(self, kind: str, text: str) -> None:
        """Fail the group on all ranks for a reason of this rank's own, and write it down."""
        self.fail(self.report(kind, f"rank {self.rank} {text}"))
        dump(take(self.state, rank=self.rank, size=self.size, group=self.label, failure=text))

    def raised(self, error: BaseException) -> None:
        """Fail the group on all ranks because of an error outside of its exchanges.

        An error of a connection, in a collective of torch's, mostly follows from what another rank
        has found out and is about to say.
        """
        if failure_kind(error) != "other" and self.cause(_FIRST) is not None:
            return
        self.give_up("raised", f"raised {describe(error)}")

    def wait_aside(self, wait: Callable[[], float], until: float) -> float:
        """Return what ``wait()`` returns; :meth:`fail` ends it even where gloo does not."""
        self._aside = Aside(wait, until)
        try:
            return self._aside.run()
        finally:
            self._aside = None

    def report(self, kind: str, text: str, lost: int = -1) -> Cause:
        """Tell all ranks why the group fails; return what they were told first."""
        cause = Cause(kind, self.rank, text, lost)
        self._cause = self._clerk.ask(lambda: self._board.report(cause), _NOTE) or cause
        return self._cause

    def cause(self, seconds: float) -> Cause | None:
        """Return why the group failed; wait so long for another rank to say so."""
        if self._cause is None:
            self._cause = self._clerk.ask(lambda: self._await_cause(seconds), seconds + _NOTE)
        return self._cause

    def _await_cause(self, seconds: float) -> Cause | None:
        end = time.monotonic() + seconds
        while (cause := self._board.cause()) is None and time.monotonic() < end:
            time.sleep(0.01)
        return cause

    def leave(self, why: str) -> None:
        """Tell the others that this rank exchanges no more over the group."""
        self._left = why
        self._publish()

    def close(self, owner: int) -> None:
        """Tell the others that one Exchange of this rank exchanges no more."""
        self._closed += (owner,)
        self._publish()

    def farewell(self, peer: int) -> str:
        """Return why another rank exchanges no more, if it has said so."""
        theirs = self._clerk.ask(lambda: self._board.account(peer), _NOTE)
        return "" if theirs is None else theirs.left

    def whereabouts(self, peers: Sequence[int]) -> str:
        """Say where the ranks are that keep ``peers``, and so this rank, waiting."""
        found = self._clerk.ask(lambda: whereabouts(self._board, self.rank, peers), _NOTE)
        return "the store does not answer either" if found is None else found

    def gather(self, seconds: float) -> Absent:
        """Meet the other ranks before the next generation; return who does not come."""
        cause = self.cause(0.0)
        self._clerk.ask(self._board.call_for_renewal, _NOTE)
        self.leave(f"called renew() after {self.state.sequence} exchanges")
        absent = self._clerk.ask(
            lambda: call_roll(self._board, self.size, cause, seconds), seconds + _NOTE
        )
        return Absent([], "the rendezvous store does not answer") if absent is None else absent

    def linger(self, seconds: float) -> None:
        """Wait until all ranks know why the group failed, but not longer.

        The process of rank 0 mostly holds the store, and takes the cause with it when it ends.
        """
        if self.rank == 0 and self._cause is not None:
            self._clerk.ask(
                lambda: await_none(self._board.unaware, self.size, seconds), seconds + _NOTE
            )

    def _publish(self) -> None:
        # Made by the clerk: of two notes at once, the last says all.
        self._clerk.ask(lambda: self._board.publish(self._account(self._published)), _NOTE)

    def _account(self, flight: Flight | None) -> Account:
        traces, waits = list(self.state.history), -1
        entries: list[Entry] = []
        for trace in traces:
            where = ""
            if flight is not None and trace is flight.trace:
                waits = len(entries)
                where = self._where(flight)
            entries.append(self._entry(trace, where))
        return Account(
            self.rank,
            tuple(entries),
            waits,
            self.state.sequence,
            self._left,
            self._closed,
            self._elsewhere,
            whole=len(traces) < KEPT,
        )

    def _entry(self, trace: Trace, where: str) -> Entry:
        return entry_of(trace, tag_mix(trace.step, trace.sequence), where)

    def _where(self, flight: Flight) -> str:
        if flight.record is not None:
            return flight.record.where
        frame = sys._current_frames().get(self.state.thread)
        return "" if frame is None else place_in(frame)


def describe(error: BaseException) -> str:
    """Return class and first line of an error, for the other ranks."""
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
