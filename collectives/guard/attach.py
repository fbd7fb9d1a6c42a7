"""Puts a group under guard, at its first exchange."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import torch

from .. import runtime
from ..errors import ExchangeTimeout
from ..facts import Facts
from ..hello import Greeting, decline, greet
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

__all__ = ["attach", "stay_away", "stay_unwatched"]

# Seconds beyond the timeout for the greeting to say by itself who is missing.
_GRACE = 2.0
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
        ExchangeTimeout: Not all ranks came in time, or the store does not answer.
    """
    door = Door.open() if _may_pass(group, device) else None
    address = "" if door is None else door.address
    dog, facts, given_up = watchdog(), _facts(group, topology, verify, address), threading.Event()
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
        )
        return Board(cast("StoreLike", page(store, greeting.run)), facts.rank), greeting

    try:
        board, greeting = dog.clerk.call(meet, timeout + _GRACE)
        state.run = greeting.run
        if door is not None:
            state.same_host = SameHost(door, facts.rank, greeting.doors, greeting.run)
    except ClerkTimeoutError as error:
        raise ExchangeTimeout(
            f"hello: the rendezvous store did not answer within {timeout:g} s (rank {facts.rank} of"
            f" {facts.size}): the process that holds it is stopped or cannot be reached; start all"
            " ranks again"
        ) from error
    finally:
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
    return guard


def _nothing() -> None:
    return None


def stay_away(group: ProcessGroup, topology: str, reason: str, seconds: float) -> None:
    """Tell ranks that wait for this one's hello that it will not come; takes so long at most."""
    facts = _facts(group, topology)
    watchdog().clerk.ask(
        lambda: decline(open_store(group), facts, label="hello", reason=reason), seconds
    )


def stay_unwatched(group: ProcessGroup, topology: str) -> None:
    """Tell ranks that wait for this one's hello that its Exchange has ``verify="off"``.

    Nobody waits where all ranks have it; then the note costs a millisecond, once.
    """
    facts = _facts(group, topology, "off")
    reason = (
        "its Exchange has verify='off', and that of this rank has not; make it with the same"
        f" verify= on all ranks (rank {facts.rank} of {facts.size})"
    )
    with suppress(TimeIsUpError, RuntimeError):  # no reason to fail: it may be what all ranks want
        call_bounded(lambda: decline(open_store(group), facts, label="hello", reason=reason), _NOTE)


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
