"""Loops over uneven numbers of batches that end on all ranks at once.

A rank that runs out of batches leaves its loop, and the others wait for it in the exchange of the
step that it does not make. Here the ranks agree on the number of steps before, or step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeVar, overload

import torch

from .binding import Binding, Route
from .deadline import deadline_of
from .errors import ArgumentError, ExchangeError
from .lifetime import Lifetime
from .move import move
from .plan import plan_dissemination
from .prepare import raise_left_over
from .tracing import untraced

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ["even_steps"]

T = TypeVar("T")
When = Literal["first", "last"]


class _Out:
    """Stands for the batch of a rank that has none left; a batch may itself be ``None``."""


_OUT: Final = _Out()


@overload
def even_steps(
    loader: Iterable[T],
    exchange: Exchange,
    *,
    when: Literal["first"] = "first",
    timeout: float | None = None,
) -> Iterable[T]: ...


@overload
def even_steps(
    loader: Iterable[T],
    exchange: Exchange,
    *,
    when: Literal["last"],
    timeout: float | None = None,
) -> Iterable[T | None]: ...


def even_steps(
    loader: Iterable[T],
    exchange: Exchange,
    *,
    when: When = "first",
    timeout: float | None = None,
) -> Iterable[T | None]:
    """Iterate over ``loader`` for as many steps as every other rank.

    ::

        for batch in even_steps(loader, exchange):
            loss = exchange.join(model(batch, exchange))
            ...

    Called by: every rank of the topology, with the same ``when``; on any topology.
    The ranks agree when the first step is asked for: between two exchanges, never inside a step.

    Cost: where every rank's loader has a length, one agreement for the whole loop; else one before
    each step. An agreement is ceil(log2(size)) exchanges of one or two numbers, for which the host
    waits on a GPU too; no gradient, and no part in the chain of ``join``.
    Step by step, a batch is fetched before it is known whether it will be used.

    Leaving the loop early tells nobody, since ranks that all leave at the same step need not be
    told. So ``break`` on all ranks at the same step, or on none. The number of the step is part of
    the signature of every exchange in the loop; so where one rank leaves alone, its next exchange
    fits to none of the others', and where it makes none, they raise an
    :class:`~collectives.errors.ExchangeError` at their deadline at the latest. To stop
    all ranks for a reason that one of them sees, let its loader end; it must have no length then::

        even_steps(itertools.takewhile(lambda _: not done(), loader), exchange)

    What else runs in each step needs equal steps too: DDP's all-reduce of gradients does, and gets
    them here; its own ``model.join()`` for uneven inputs knows nothing of exchanges: leave it out.

    Args:
        loader: Of this rank: a DataLoader, or any iterable; an iterator counts as one without
            length.
        exchange: Over the ranks that step together.
        when: "first": the loop ends when the first rank runs out. "last": when all have; a rank
            that is out gets ``None``, and takes part in the step with zeros of its own making.
        timeout: Seconds for each exchange of an agreement, instead of the Exchange's.

    Returns:
        An iterable over the loader's batches; with ``when="last"`` also ``None``. Each loop over it
        agrees anew, as each loop over a loader begins anew; so it can stand where Lightning takes a
        dataloader: ``def train_dataloader(self): return even_steps(loader, self.exchange)``.

    Raises:
        ArgumentError: The loader yields fewer batches than its ``len()`` said; with ``when="last"``
            also where it yields more. The other ranks go by that number, so the group is aborted:
            they fail too, and say why.
        ExchangeError: A rank left its loop, or fails.

    Example:
        >>> def program(adapter, when):
        ...     exchange = Exchange(Ring, adapter)
        ...     batches = ["abc", "ab", "abcd"][exchange.rank]
        ...     return list(even_steps(batches, exchange, when=when))
        >>> simulate(3, program, "first")
        [['a', 'b'], ['a', 'b'], ['a', 'b']]
        >>> simulate(3, program, "last")
        [['a', 'b', 'c', None], ['a', 'b', None, None], ['a', 'b', 'c', 'd']]
    """
    if not isinstance(exchange, Lifetime):
        raise ArgumentError(
            f"even_steps: expected an Exchange, got {exchange!r}; even_steps(loader, exchange)"
        )
    if when not in ("first", "last"):
        raise ArgumentError(f"even_steps: when must be 'first' or 'last', got {when!r}")
    if timeout is not None:
        deadline_of(timeout)
    return _EvenSteps(loader, exchange, when, timeout)


class _EvenSteps(Iterable[T | None]):
    """Makes a loop each time that it is iterated over."""

    def __init__(
        self, loader: Iterable[T], exchange: Exchange, when: When, timeout: float | None
    ) -> None:
        self._loader, self._options = loader, (exchange, when, timeout)

    @untraced  # a generator that Dynamo has begun to trace, it takes for untouched
    def __iter__(self) -> Iterator[T | None]:
        return _steps(self._loader, _Agreement(*self._options))


class _Agreement:
    """What all ranks say to each other about their loops."""

    def __init__(self, exchange: Exchange, when: When, timeout: float | None) -> None:
        self.exchange, self.when, self.timeout = exchange, when, timeout
        self.taken = 0

    def steps(self, length: int | None) -> int | None:
        """Return how many steps all ranks make; ``None`` where one of them cannot say."""
        mine = (-1, 0) if length is None else (length, -length)
        shortest, minus_longest = self._minimum("lengths", mine)
        if shortest < 0:
            return None
        return shortest if self.when == "first" else -minus_longest

    def another(self, *, have: bool) -> bool:
        """Return whether all ranks make another step."""
        if self.when == "first":
            (all_have,) = self._minimum("next step", (int(have),))
            return bool(all_have)
        (none_has,) = self._minimum("next step", (int(not have),))
        return not none_has

    def refuse(self, length: int, what: str) -> ArgumentError:
        """Return the error for a loader that breaks the agreement, and tell the other ranks."""
        binding = self.exchange._bound()
        text = (
            f"even_steps: len(loader) says {length} batches, but {what} {binding.here}: the ranks"
            " agreed on the number of steps by len(loader). Correct it (a sampler or dataset that"
            " skips some), or pass iter(loader), which has no length: the ranks then agree before"
            " each step"
        )
        if binding.engine.size > 1:
            self.exchange.abort(text)
        return ArgumentError(text)

    def _minimum(self, about: str, numbers: tuple[int, ...]) -> list[int]:
        """Return the least of all ranks' numbers, one by one."""
        binding = self.exchange._bound()
        raise_left_over(binding)  # also where there is nobody to exchange with
        found = torch.tensor(numbers, device=binding.engine.device)
        try:
            for route in _routes(binding, f"even_steps(when={self.when!r}), {about}"):
                (theirs,) = move(binding, route, (found,), timeout=self.timeout)
                assert isinstance(theirs, torch.Tensor)
                found = torch.minimum(found, theirs)
        except ExchangeError as error:
            raise type(error)(
                f"{error}. Here rank {binding.engine.rank} asked for step {self.taken + 1} of"
                " even_steps: a rank that left its loop by break or an exception, or never began"
                " it, does not answer; leave it on all ranks at the same step"
            ) from error
        return [int(number) for number in found.tolist()]


def _routes(binding: Binding, op: str) -> list[Route]:
    """Return the routes of an agreement, made once per Exchange."""
    routes, size = binding.routes, binding.engine.size
    if (op, 0) not in routes:
        plans = plan_dissemination(op, size, binding.engine.rank)
        routes.update({(op, number): Route(plan) for number, plan in enumerate(plans)})
    return [routes[op, number] for number in range((size - 1).bit_length())]


@untraced
def _steps(loader: Iterable[T], agreement: _Agreement) -> Iterator[T | None]:
    """Count the steps where all ranks see it: a rank that leaves the loop alone does not fit."""
    state = agreement.exchange._bound().engine.state
    outer = here = state.loop
    try:
        for number, batch in enumerate(_agreed(loader, agreement)):
            here = (number,)
            state.enter_loop(here)
            yield batch
    finally:
        # Not where another loop has gone on since: one that was left and that something still
        # refers to (a Trainer that takes so many batches) ends at any time, another on each rank.
        if state.loop is here:
            state.enter_loop(outer)


def _agreed(loader: Iterable[T], agreement: _Agreement) -> Iterator[T | None]:
    length = _length(loader)
    total = agreement.steps(length)
    batches = iter(loader)
    if total is None or length is None:
        yield from _one_by_one(batches, agreement)
        return
    mine = min(length, total)
    for agreement.taken in range(mine):
        batch = next(batches, _OUT)
        if isinstance(batch, _Out):
            raise agreement.refuse(length, f"it ended after {agreement.taken}")
        yield batch
    if agreement.when == "last":
        if not isinstance(next(batches, _OUT), _Out):
            raise agreement.refuse(length, "it goes on")
        yield from (None for _ in range(total - mine))


def _one_by_one(batches: Iterator[T], agreement: _Agreement) -> Iterator[T | None]:
    batch: T | _Out = next(batches, _OUT)
    while agreement.another(have=not isinstance(batch, _Out)):
        agreement.taken += 1
        yield None if isinstance(batch, _Out) else batch
        if not isinstance(batch, _Out):  # an iterator need not stay at its end
            batch = next(batches, _OUT)


def _length(loader: Iterable[object]) -> int | None:
    if isinstance(loader, Iterator):  # begun perhaps: iter(DataLoader) counts what has gone too
        return None
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # a DataLoader over an iterable dataset has __len__
        return None
