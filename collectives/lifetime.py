"""The life of an Exchange: its steps, its backward, its end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from .bound import BoundLate
from .checks import check_numbers
from .compiled.eager import eager_only, graphable
from .deadline import deadline_of
from .errors import CollectivesError, ExchangeClosed, PeerLost
from .guard import describe, stay_away, watchdog
from .joining import join_chain
from .prepare import raise_left_over
from .renewal import renew_group, successor
from .state import in_numbers
from .tracing import tracing, untraced

if TYPE_CHECKING:
    from types import TracebackType

    from .record import FlightRecord

__all__ = ["Lifetime"]

E = TypeVar("E", bound="Lifetime")


class Lifetime(BoundLate):
    """How an Exchange ends, and what is common to its operations; see :class:`Exchange`."""

    # -- the end ---------------------------------------------------------------------------------

    @eager_only
    def close(self) -> None:
        """End this Exchange; the process group stays. Idempotent.

        Neighbours that wait for an exchange that this rank has left out get an error within a
        second or two (:class:`PeerLost`).

        Raises:
            PendingDropped: A Pending of its group was thrown away without ``wait()``.
        """
        binding, self._binding, closed, self._closed = self._binding, None, self._closed, True
        if binding is None or closed or not binding.valid():
            return
        state = binding.engine.state
        if state.guard is not None and state.broken is None:
            state.guard.close(binding.owner)
        binding.engine.transport.close()
        if state.dropped:
            raise_left_over(binding)

    @eager_only
    def abort(self, reason: str) -> None:
        """Fail on all ranks: what waits raises now, and the group cannot be used any more.

        Called by: any rank, from any thread; for a failure outside of an exchange, which the
        others would otherwise learn from their deadlines. Where all ranks live, :meth:`renew` goes
        on.

        Args:
            reason: A sentence for the error text of all ranks.
        """
        binding = self._bound()
        state = binding.engine.state
        text = f"rank {binding.engine.rank} aborted: {reason}"
        state.broken = state.broken or text
        greeting = state.greeting  # looked at before the guard, which comes when this goes
        if state.guard is not None:
            state.guard.give_up("aborted", f"aborted: {reason}")
        elif greeting is not None:
            greeting.error = PeerLost(f"hello: {text} {binding.here}")
            greeting.set()
        elif binding.guarded:
            stay_away(binding.guarded, binding.digest, state.broken, seconds=1.0)

    @eager_only
    def renew(self, timeout: float = 60.0) -> None:
        """Go on over a new process group, after a failure that all ranks outlived.

        Called by: every rank, in the same order as other operations. Exchanges over the same group
        go on as well, once each was renewed. What else used the old group (DDP, Lightning) does
        not: gloo's connections are gone. Where a process has ended, restart instead: ``torchrun
        --max-restarts``.

        Args:
            timeout: Seconds to wait for the other ranks, and for each later exchange of torch's. A
                rank that is known to be gone is not waited for.

        Raises:
            PeerLost: Not all ranks came; the text names those that did not.
            ContextError: torch could not make the group.
        """
        seconds = deadline_of(timeout).seconds
        binding = self._bound()
        group, state = binding.context.group, binding.engine.state
        if group is not None and successor(group) is group:
            renew_group(group, state.guard, seconds, binding.here)
            state.leave_host()
        elif group is None:
            state.broken = None
        self._binding = None

    def __enter__(self: E) -> E:
        """Close at the end of the block; an exception in it is told to the other ranks at once."""
        return self

    @untraced
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
            return
        with contextlib.suppress(CollectivesError):  # the error of the block is the one to see
            guard = self._bound().engine.state.guard
            if guard is None:
                self.abort(describe(error))
            else:
                guard.raised(error)
            self.close()

    # -- the backward ----------------------------------------------------------------------------

    @graphable
    def join(self, loss: Tensor) -> Tensor:
        """Tie all exchanges made since the last join to ``loss``: call it before ``backward()``.

        Then every rank runs the backward of every exchange, in the same order, even where its
        own loss does not depend on one (a causal skip, a detached term, an unused output); else
        the ranks whose loss does would wait for it. The value is unchanged.

        With several losses, join each where it is computed: ``join`` cuts the chain, so that
        each backward runs its own exchanges. Losses that are backpropagated one by one over one
        chain would run what they share twice.

        Called by: every rank. Gradient: passes through. Under ``no_grad`` it does nothing.

        Args:
            loss: Any tensor of a floating-point dtype.

        Returns:
            A tensor equal to ``loss``; it requires grad if anything was exchanged under grad.
        """
        if tracing():
            from .compiled.traced import join as join_in_graph

            return join_in_graph(self, loss)
        return join_chain(self._bound(), loss)

    @eager_only
    def check_backward(self) -> None:
        """Raise if the backward of only some of the last exchanges ran; then begin anew.

        Called by: any rank, after ``backward()``. Purely local.

        Raises:
            DeadExchange: Names what did not run, and the line that made it.
        """
        self._bound().engine.state.check_backward()

    @eager_only
    def mark_step(self, *numbers: int) -> None:
        """Tell where the loop stands: the numbers take part in matching from now on.

        Called by: every rank, between two steps, with the same numbers (epoch, step); so ranks
        that are out of step do not take each other's messages. Without numbers it only checks.

        Raises:
            DeadExchange: As :meth:`check_backward`.
            PendingDropped: A Pending was thrown away without ``wait()``.
        """
        check_numbers(numbers)
        binding = self._bound()
        raise_left_over(binding)
        binding.engine.state.marked = True
        binding.engine.state.mark_step(numbers)
        if binding.engine.state.guard is not None:
            watchdog().listen()  # somebody may have taken the signals over meanwhile
        binding.engine.state.check_backward()

    @eager_only
    def stats(self) -> dict[str, float]:
        """Return what this Exchange has moved on this rank since it was bound, for a logger.

        Returns:
            ``exchanges`` (calls, backward ones included), ``messages_sent``, ``bytes_sent``,
            ``bytes_received``, ``bytes`` (both), ``seconds`` (from posting to arrival, summed),
            ``wait_ms`` (milliseconds of these that this rank stood still); and the same of each
            operation: ``shift/bytes``. Copies within the rank are not counted. What a GPU waits
            for does not hold up this rank, and is not in ``wait_ms``.
        """
        return in_numbers(self._bound().engine.counters)

    @eager_only
    def flight_record(self) -> FlightRecord:
        """Return what this rank's group remembers of its last 64 exchanges, to be saved as JSON.

        Operations, names, shapes and times, never values. ``python -m collectives flight-record``
        reads the files of all ranks together and says who was where.

        Called by: any rank, at any time, after a failure too. Nothing is exchanged. Exchanges over
        one group share one record.

        Raises:
            ExchangeClosed: The Exchange was closed.
            ContextError: It was never used, and the adapter knows no rank yet.
        """
        if self._closed:
            raise ExchangeClosed(f"{self!r} was closed; take its flight record before close()")
        # Not kept where it is new: a record is no first use.
        binding = self._binding if self._binding is not None else self._new_binding()
        return binding.flight_record()
