"""One block after the other, while the next one is on its way.

All ranks run all hops, whoever leaves the loop early: hops are numbered, and a rank that left some
out would meet its neighbours in another exchange.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor

from ..binding import Route
from ..chain import inside_backward
from ..errors import ExchangeError
from ..move import start_move
from ..pending import Dropped
from ..plan import Lane, Plan
from ..tracing import untraced
from ..transport.baton import RankEnded
from ..trees import flatten

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..binding import Binding
    from ..pending import Pending
    from .track import Track

__all__ = ["Options", "circulate", "start_hop"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """How blocks are passed.

    Args:
        op: The operation in words, alike on all ranks.
        prefetch: Hops that are under way while the caller computes.
        shapes: Who says what arrives, as for a shift.
        timeout: Seconds for each hop, instead of the Exchange's.
    """

    op: str
    prefetch: int = 1
    shapes: Literal["same", "discover", "once"] = "same"
    timeout: float | None = None


def circulate(
    binding: Binding,
    track: Track,
    tree: T,
    options: Options,
    *,
    first: int = 0,
    graded: int | None = None,
) -> Generator[tuple[int | None, T], None, None]:
    """Yield ``(source, block)`` after each number of hops; all ranks equally often.

    ``source`` is ``None``, and the block zeros, where it would come from beyond an open end. A
    caller who leaves early waits until the other hops have been run as well. Grad mode is that of
    the call, not of the loop.

    Args:
        binding: Of the Exchange.
        track: Along which the blocks travel.
        tree: What is here after ``first`` hops, which is yielded first.
        options: Of the loop.
        first: Hops that have been run.
        graded: Hops up to this one are differentiable; ``None``: all.
    """
    last = track.extent if graded is None else graded
    return _circulate(_Passing(binding, track, tree, options, first, last), track, first)


def _circulate(
    passing: _Passing[T], track: Track, first: int
) -> Generator[tuple[int | None, T], None, None]:
    try:
        for hop in range(first, track.extent):
            yield track.source(hop), passing.block(hop)
        if track.extent == 1:  # refuse what is refused where blocks travel
            passing.check()
    except GeneratorExit:
        passing.finish()
        raise


class _Passing(Generic[T]):
    """The hops of one loop.

    More than one hop under way means that each rank sends its own block to all the others: what a
    neighbour shall hand on must first have come to it.
    """

    def __init__(
        self, binding: Binding, track: Track, tree: T, options: Options, first: int, graded: int
    ) -> None:
        self._binding, self._line, self._options = binding, track, options
        self._own = self._block = tree
        self._graded = graded if torch.is_grad_enabled() else 0
        self._direct = options.prefetch > 1
        self._started = self._landed = first
        self._under_way: deque[Pending[T]] = deque()
        self._versions: list[tuple[Tensor, int]] = []

    def block(self, hop: int) -> T:
        """Return the block after ``hop`` hops, with the next ones on their way."""
        self.check()
        self._land(hop)
        last = min(hop + self._options.prefetch, self._line.extent - 1)
        while self._started < last:
            self._start()
        if not self._under_way:  # else it is found out when that has landed
            self._note()
        return self._block

    def check(self) -> None:
        """Refuse that the caller wrote to what is still to be sent.

        Raises:
            ExchangeError: It was written to. Inference tensors do not tell.
        """
        modified = any(x._version != version for x, version in self._versions)
        self._versions = []
        if modified:
            raise ExchangeError(
                f"{self._options.op}: a block was modified in place {self._binding.here}, and the"
                " next rank would get what was written; work on a clone"
            )

    def _note(self) -> None:
        leaves = flatten(self._block, self._options.op)[0]
        self._versions = [(x, x._version) for x in leaves if not x.is_inference()]

    @untraced  # Dynamo does not see that a generator is thrown away, but what that calls
    def finish(self) -> None:
        """Run all hops that are left, unless the group has failed: then the next call says so.

        An iterator that is thrown away has nobody to raise to: that is for the next call, too.
        """
        state = self._binding.engine.state
        if state.broken is not None:
            return
        try:
            self._land(self._line.extent - 1)
        except ExchangeError as error:
            if state.broken is None:
                state.dropped.append(Dropped("", None, error))
        except RankEnded:
            pass  # a simulated world is over: the rank's next message raises it again
        except Exception:
            # A checkpoint that computes the loop again stops it by raising, after the last hop.
            if not inside_backward():
                raise

    def _land(self, hop: int) -> None:
        while self._landed < hop:
            if not self._under_way:
                self._start()
            with torch.set_grad_enabled(self._landed < self._graded):
                self._block = self._under_way.popleft().wait()
            self._landed += 1

    def _start(self) -> None:
        hop = self._started + 1
        lane = self._line.direct(hop) if self._direct else self._line.relay(hop)
        tree = self._own if self._direct else self._block
        with torch.set_grad_enabled(hop <= self._graded):
            self._under_way.append(start_hop(self._binding, lane, tree, self._options, hop))
        self._started = hop


def start_hop(binding: Binding, lane: Lane, tree: T, options: Options, hop: int) -> Pending[T]:
    """Start to send a tree down one lane, in hop number ``hop``; ``wait()`` gives what came."""
    once = options.shapes == "once"
    # What is remembered of one hop does not hold for the next: other ranks' blocks come then.
    key = (options.op, lane, options.shapes, hop if once else 0)
    route = binding.routes.get(key)
    if route is None:
        plan = Plan(options.op, binding.engine.rank, binding.engine.size, (lane,))
        route = binding.routes[key] = Route(plan, discover=options.shapes != "same", once=once)
    pending = start_move(binding, route, (tree,), _first, timeout=options.timeout)
    return cast("Pending[T]", pending)


def _first(arrived: tuple[object, ...]) -> object:
    return arrived[0]
