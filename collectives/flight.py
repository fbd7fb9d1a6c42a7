"""One run of a call, until its messages have been moved."""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.autograd.graph import increment_version

from .dtypes import as_memory
from .ranges import WATCHERS, ranged
from .transport.same_host import NEAR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call import Call
    from .chain import Record
    from .deadline import Deadline
    from .engine import Engine
    from .messages import Buffer, Leaf, Pack
    from .trace import Trace
    from .transport import Post, Work

__all__ = ["NOTHING", "Flight"]

# Stands for a result that is made when its message has come.
NOTHING = torch.empty(0)


class Flight:
    """What the engine owns of one run of a call, forward or backward.

    gloo loses a message whose Work is dropped, and writes into a buffer that nobody holds: so a
    started flight holds both until it has landed, and nothing after it.

    Args:
        engine: That runs it.
        call: The tables that it walks.
        sequence: Number of the exchange on its group; a backward has its forward's.
        deadline: How long it may take.
        outs: One tensor per output to write into, or fresh ones.
        fill: Value beyond an open end.
        record: Its place in the token chain, if it has one.
    """

    # On the class, since most flights never change them: to make one is part of every call.
    inputs: Sequence[Tensor] = ()
    results: list[Tensor]
    works: Sequence[Work] = ()
    packed: list[tuple[Pack, Buffer, bool]] | None = None
    copied: list[tuple[Tensor, Tensor]] | None = None
    held: Sequence[Tensor] = ()  # aliases of buffers of the caller that are written to
    gaps = False  # in a buffer of the caller, which then cannot be received into
    landed = False
    awaited: Work | None = None  # that is waited for, or whose wait raised
    begun = 0.0
    entered = 0.0  # when the wait began
    agreed = False  # begun before its start: peers have said that they are in the same exchange
    wrapped = False  # its inputs belong to a torch.func transform, and have no memory
    early: Sequence[Post] = ()  # what goes before the payload, while it is on its way
    adjoint: Callable[[], Sequence[Tensor]] | None = None

    def __init__(
        self,
        engine: Engine,
        call: Call,
        sequence: int,
        deadline: Deadline,
        outs: Sequence[Tensor] | None = None,
        fill: float = 0,
        record: Record | None = None,
    ) -> None:
        self.engine, self.call, self.sequence, self.deadline = engine, call, sequence, deadline
        self.outs, self.fill, self.record = outs, fill, record
        self.trace: Trace

    def start(self, inputs: Sequence[Tensor]) -> Flight:
        """Post all messages, outside autograd; one input per input of the call."""
        if profiler._is_profiler_enabled or WATCHERS:
            with ranged(self.call, "post"):
                return self.engine.start(self, inputs)
        return self.engine.start(self, inputs)

    def now(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Post all messages and wait for them, outside autograd."""
        if profiler._is_profiler_enabled or WATCHERS:
            with ranged(self.call):
                return self.engine.start(self, inputs)._finish()
        return self.engine.start(self, inputs)._finish()

    def wait(self) -> list[Tensor]:
        """Return the outputs once all messages have been moved; nothing the second time."""
        if not self.landed and (profiler._is_profiler_enabled or WATCHERS):
            with ranged(self.call, "wait"):
                return self._finish()
        return self._finish()

    def _finish(self) -> list[Tensor]:
        if not self.landed:
            self.claim()
            state = self.engine.state
            state.waiting = self
            try:
                if self.call.long and state.guard is not None and not self._near():
                    until = self.begun + self.deadline.seconds + self.deadline.GRACE
                    moved = state.guard.wait_aside(self._land, until)
                else:
                    moved = self._land()
            except BaseException as error:
                failure = self.engine.failure(error, self)
                if failure is error:
                    raise
                raise failure from error
            if self.packed or self.copied:
                self._unpack()
            if self.outs is not None and self.call.written:
                self._count_versions()
            self.landed = True
            state.waiting = None
            self.trace.ended = moved
            counters = self.call.counters
            if counters is not None:
                counters.seconds += moved - self.begun
                counters.waited += moved - self.entered
        results, self.results = self.results, []
        # A result that requires grad keeps its node alive, and the node this flight.
        self.inputs, self.works, self.held = (), (), ()
        return results

    def claim(self) -> None:
        """Refuse to be waited for in a thread that does not exchange over the group.

        Raises:
            ExchangeError: Another thread does.
        """
        state = self.engine.state
        if state.thread != get_ident():
            state.claim(f"(rank {self.engine.rank} of {self.engine.size})")

    def needs(self, peer: int) -> bool:
        """Whether a message to or from a peer may be under way; from any thread.

        gloo does not say which it has moved before they are waited for.
        """
        works = list(self.works)
        if peer in self.engine.near:
            mine = (work for work in works if isinstance(work, NEAR) and work.peer == peer)
            return any(not work.done for work in mine)
        awaited, ends, order = self.awaited, self.ends(), list(self._in_order())
        if len(works) != len(ends) or awaited not in order:
            return True
        rest = order[order.index(awaited) :]
        return any(end == peer and work in rest for work, end in zip(works, ends, strict=True))

    def ends(self) -> list[int]:
        """Return the peers of all works, in the order in which they are posted."""
        if self.early:
            return [post.peer for post in self.early]
        return [message.peer for message in self.call.awaited + self.call.sent]

    def _in_order(self) -> Sequence[Work]:
        """Return all works in the order in which they are waited for.

        First what goes past gloo, which only waits move, if there is much of it. Then those with
        the rank that mostly holds the store: once it has ended, nobody can say whether it had moved
        all, but for the order.
        """
        call, works, engine = self.call, self.works, self.engine
        if self.early:
            return works  # headers: their order says nothing of that of the payload
        if call.order is None:
            ends = self.ends()
            ranks = [(end not in engine.near, end != engine.host) for end in ends]
            order = sorted(range(len(ends)), key=ranks.__getitem__)
            call.order = [] if order == sorted(order) else order
        one_by_one = len(works) == len(call.order)
        return [works[i] for i in call.order] if one_by_one else works

    def _near(self) -> bool:
        """Whether all of it goes past gloo: those waits end by themselves when they are broken."""
        return self.engine.near.issuperset(self.call.peers)

    def _land(self) -> float:
        """Wait for all messages, and return when the last of them had been moved."""
        begun, deadline, now = self.begun, self.deadline, time.monotonic
        self.entered = moved = now()
        full, exact = deadline.full, begun + deadline.GRACE
        for work in self._in_order():
            self.awaited = work
            work.wait(full if moved < exact else deadline.remaining(moved - begun))
            moved = now()
        self.awaited = None
        return moved

    def reverse(self) -> Flight:
        """Return the flight of the adjoint; it keeps the number of the forward."""
        return Flight(
            self.engine, self.call.reverse(), self.sequence, self.deadline, record=self.record
        )

    def tangent(self) -> Flight:
        """Return the flight that carries the tangents; a number of its own."""
        sequence = self.engine.state.next_sequence()
        return Flight(self.engine, self.call.tangent(), sequence, self.deadline)

    def make_places(self) -> list[Tensor]:
        """Return the results, to be filled later: autograd must see them before they arrive."""
        for i in self.call.unpacked_later:
            if self.results[i] is NOTHING:
                shape, dtype = self.call.outputs[i]
                self.results[i] = torch.empty(shape, dtype=dtype, device=self.engine.device)
        return self.results

    def detour(self, target: Tensor, leaf: Leaf) -> Tensor:
        """Return where to receive what belongs into a ``target`` with gaps."""
        buffer = torch.empty(leaf.shape, dtype=leaf.dtype, device=target.device)
        self.copied = [*(self.copied or ()), (target, buffer)]
        return buffer

    def take(self, pack: Pack, *, received: bool) -> Buffer:
        """Return a buffer for a packed message, to be given back after landing."""
        buffer = pack.take(self.engine.device)
        self.packed = [*(self.packed or ()), (pack, buffer, received)]
        return buffer

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def _unpack(self) -> None:
        for pack, buffer, received in self.packed or ():
            if received:
                self._receive(pack, buffer)
            pack.give(buffer)
        for target, buffer_ in self.copied or ():
            as_memory(target).copy_(as_memory(buffer_))

    def _receive(self, pack: Pack, buffer: Buffer) -> None:
        """Copy leaves out of a packed message: into tensors that are there, or new ones."""
        results = self.results
        if results[pack.indices[0]] is not NOTHING:
            torch._foreach_copy_([results[i] for i in pack.indices], buffer.views)
            return
        for i, leaf in zip(pack.indices, buffer.copies(), strict=True):
            results[i] = leaf

    def _count_versions(self) -> None:
        """Tell autograd what the transport wrote behind its back into buffers of the caller.

        Whoever saved an older result must know. Copies count by themselves.
        """
        written, results = self.call.written, self.results
        every = len(written) == len(results)
        _increment_versions(results if every else [results[i] for i in written])


def _increment_one_by_one(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if not tensor.is_inference():
            increment_version(tensor)


def _version_counter() -> Callable[[Sequence[Tensor]], None]:
    try:
        increment_version([])
    except (RuntimeError, TypeError):  # older torch takes one tensor, which must have a counter
        return _increment_one_by_one
    # What increment_version calls, without its look at what it was given: half of the time.
    return getattr(torch._C, "_increment_version", increment_version)


_increment_versions = _version_counter()
