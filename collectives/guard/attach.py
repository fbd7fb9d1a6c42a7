"""Puts a group under guard, at its first exchange."""

from __future__ import annotations

import os
import warnings
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from .. import runtime
from ..errors import CollectivesError, ContextError, ExchangeTimeout, PeerLost
from ..facts import Facts
from ..hello import Greeting, Stop, decline, greet
from ..launcher import find_job
from ..settings import same_host
from ..transport.control import (
    break_connections,
    connection_lost,
    goes_over_gloo,
    open_store,
    page,
    store_outlives_ranks,
)
from ..transport.same_host import Door, SameHost
from ..transport.stopwatch import TimeIsUpError, call_bounded
from .board import Board
from .clerk import ClerkTimeoutError
from .guard import Guard
from .watchdog import watchdog

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..signature import Verify
    from ..state import GroupState
    from .board import StoreLike

__all__ = ["attach", "decline_for", "has_met", "stay_away", "stay_unwatched"]

# Groups of which this rank has greeted the others, or told them that it will not.
_met: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()

# Seconds beyond the timeout for the greeting to say by itself who is missing.
_GRACE = 2.0
_LOOKS = 3  # in a row that see the store's host gone: who greets, and may know more, comes first
_NOTE = 1.0  # that the store may take for a note that mostly nobody reads

# pytorch/pytorch#135712: gloo waits five times its timeout for a rank of the attempt before.
_STALE = (
    "torchrun may start this job anew (--max-restarts), but its process group was made by"
    " init_process_group over the store of torchrun's agent, which keeps the addresses of ranks"
    " that have ended, so that the next attempt may fail or hang; set"
    " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, or let `with RawDDPAdapter()` make the"
    " group"
)


def attach(
    state: GroupState,
    group: ProcessGroup,
    device: torch.device,
    *,
    label: str,
    topology: str,
    verify: Verify,
    timeout: float,
) -> Guard:
    """Say hello to the other ranks of the group, and watch over it from now on.

    Called by: every rank of the group, before its first exchange.

    Args:
        state: Of the group.
        group: Of more than one rank.
        device: Of the tensors.
        label: Of the group, for the flight record.
        topology: Of the first exchange.
        verify: Of its Exchange.
        timeout: Seconds to wait for the others.

    Raises:
        ContextError: The ranks do not agree on what this job is.
        PeerLost: A rank has ended, said that it will not come, or aborts.
        ExchangeTimeout: Not all ranks came in time, or the store does not answer.
    """
    door = Door.open() if _may_pass(group, device) else None
    address = "" if door is None else door.address
    dog, facts, given_up = watchdog(), _facts(group, topology, verify, address), Stop()
    lasting = store_outlives_ranks()
    if lasting and facts.rank == 0:
        warnings.warn(f"{_STALE} (rank 0 of {facts.size})", RuntimeWarning, stacklevel=2)

    def meet() -> tuple[Board, Greeting]:
        # A group that is made again over the same store (a second fit) must not read what was
        # left for the one before: each has a page of its own.
        store = open_store(group)
        greeting = greet(
            store,
            facts,
            timeout=timeout,
            label="hello",
            stop=given_up,
            lasting=lasting,
            lost=partial(connection_lost, group, device),
        )
        return Board(cast("StoreLike", page(store, greeting.run)), facts.rank), greeting

    _met.add(group)
    state.greeting = given_up
    try:
        board, greeting = dog.clerk.call(meet, timeout + _GRACE, _StoreHost(group, device))
        state.run = greeting.run
        if door is not None:
            state.same_host = SameHost(door, facts.rank, greeting.doors, greeting.run)
    except ClerkTimeoutError as error:
        raise ExchangeTimeout(
            f"hello: the rendezvous store did not answer within {timeout:g} s (rank {facts.rank} of"
            f" {facts.size}): the process that holds it is stopped or cannot be reached; start all"
            " ranks again"
        ) from error
    except RuntimeError as error:  # of torch's store
        if isinstance(error, CollectivesError):
            raise
        raise PeerLost(
            f"hello: the connection to the rendezvous store was lost (rank {facts.rank} of"
            f" {facts.size}): the process that holds it, mostly the job's rank 0, has ended;"
            " see its output, and start all ranks again"
        ) from error
    finally:
        state.greeting = None
        given_up.set()  # Ctrl-C comes here, and not to the thread that greets
        if door is not None and state.same_host is None:
            door.close()
    # Weakly: a guard may still be saying good-bye when the group has long been gone.
    reference = weakref.ref(group)
    way = _nothing if state.same_host is None else weakref.ref(state.same_host)

    def interrupt() -> None:
        found, near = reference(), way()
        if near is not None:
            near.break_off()
        if found is not None:
            break_connections(found, device)

    def lost(peer: int) -> bool:
        found, near = reference(), way()
        if near is not None and near.lost(peer):
            return True
        return found is not None and connection_lost(found, device, peer)

    def alive() -> bool:
        found = reference()
        return found is not None and runtime.group_alive(found)

    guard = state.guard = Guard(
        facts.rank,
        facts.size,
        state,
        board,
        dog.clerk,
        label=label,
        interrupt=interrupt,
        lost=lost,
        alive=alive,
        guards=dog.guards,
    )
    dog.add(guard)
    if state.broken is not None:  # aborted when nobody could be told yet
        guard.fail(guard.report("aborted", state.broken))
        raise PeerLost(f"hello: {state.broken} (rank {facts.rank} of {facts.size})")
    return guard


class _StoreHost:
    """Looks, from time to time, whether the process that mostly holds the store has ended.

    Who greets would learn of it from the store, were it there; to connect to it anew takes torch
    as long as it may.

    Args:
        group: Of the ranks.
        device: Of the tensors.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._host = runtime.store_host(group)
        self._lost = 0  # looks in a row that saw it so

    def __call__(self) -> None:
        """Look.

        Raises:
            PeerLost: It has ended, and who greets has had the time to say more.
        """
        rank, size, host = self._group.rank(), self._group.size(), self._host
        lost = host not in (rank, -1) and connection_lost(self._group, self._device, host)
        self._lost = self._lost + 1 if lost else 0
        if self._lost > _LOOKS:
            raise PeerLost(
                f"hello: rank {host} ended, or destroyed the process group, before the first"
                f" exchange over it, and the rendezvous store does not answer (rank {rank} of"
                f" {size}); see the output there"
            )


def _nothing() -> None:
    return None


def has_met(group: ProcessGroup) -> bool:
    """Whether this rank has greeted the others of the group, or told them that it will not."""
    return group in _met


def decline_for(
    group: ProcessGroup,
    reason: str,
    kind: type[CollectivesError] = PeerLost,
    topology: str = "",
    verify: str = "",
) -> None:
    """Tell ranks that wait for this one's hello that it will not come. May block."""
    _met.add(group)
    facts = _facts(group, topology, verify)
    decline(open_store(group), facts, label="hello", reason=reason, kind=kind)


def stay_away(group: ProcessGroup, topology: str, reason: str, seconds: float) -> None:
    """Tell ranks that wait for this one's hello that it will not come; takes so long at most."""
    watchdog().clerk.ask(lambda: decline_for(group, reason, topology=topology), seconds)


def stay_unwatched(group: ProcessGroup, topology: str) -> None:
    """Tell ranks that wait for this one's hello that its Exchange has ``verify="off"``.

    Nobody waits where all ranks have it; then the note costs a millisecond, once.
    """
    reason = (
        "its Exchange has verify='off', and that of this rank has not; make it with the same"
        f" verify= on all ranks (rank {group.rank()} of {group.size()})"
    )
    with suppress(TimeIsUpError, RuntimeError):  # no reason to fail: it may be what all ranks want
        call_bounded(lambda: decline_for(group, reason, ContextError, topology, "off"), _NOTE)


def _may_pass(group: ProcessGroup, device: torch.device) -> bool:
    """Whether messages may go past the group's backend, to ranks of the same host."""
    if device.type != "cpu" or group.size() == 1 or not same_host(os.environ):
        return False
    return goes_over_gloo(group, device)


def _facts(group: ProcessGroup, topology: str, verify: str = "", door: str = "") -> Facts:
    return Facts(
        group.rank(),
        group.size(),
        topology,
        job=find_job(os.environ),
        torch=torch.__version__,
        verify=verify,
        door=door,
    )
