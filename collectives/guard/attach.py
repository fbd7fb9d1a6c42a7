"""Puts a group under guard, at its first exchange."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, cast

from torch import distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # documented, not listed

from .. import runtime
from ..transport.group import break_connections
from .board import Board
from .guard import Guard
from .watchdog import watchdog

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from ..state import GroupState
    from .board import StoreLike

__all__ = ["attach"]


def attach(state: GroupState, group: ProcessGroup, device: torch.device, timeout: float) -> Guard:
    """Say hello to the other ranks of the group, and watch over it from now on.

    Called by: every rank of the group, before its first exchange.

    Args:
        state: Of the group.
        group: Of more than one rank.
        device: Of the tensors.
        timeout: Seconds to wait for the others.

    Raises:
        ContextError: The ranks do not agree on what this job is.
        ExchangeTimeout: Not all ranks came in time, or the store does not answer.
    """
    dog = watchdog()
    store = dog.clerk.call(lambda: _open_store(group, group.rank()), timeout)
    reference = weakref.ref(group)

    def interrupt() -> None:
        found = reference()
        if found is not None:
            break_connections(found, device)

    def alive() -> bool:
        found = reference()
        return found is not None and runtime.group_alive(found)

    guard = state.guard = Guard(
        group.rank(),
        group.size(),
        state,
        Board(cast("StoreLike", store)),
        dog.clerk,
        interrupt=interrupt,
        alive=alive,
    )
    dog.add(guard)
    return guard


def _open_store(group: ProcessGroup, rank: int) -> object:
    """Return a store for notes of this life of the group.

    The connection is one of our own: a wait of torch's own over a shared one would block it. A
    group that is made again over the same store (a second fit, a restart by torchrun) must not
    read what was left for the one before.
    """
    store = dist.distributed_c10d._get_default_store()
    clone = getattr(store, "clone", None)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    whole = PrefixStore(
        f"torch-collectives/{attempt}/{group.group_name}", store if clone is None else clone()
    )
    generation = whole.add(f"generation/{rank}", 1)
    return PrefixStore(str(generation), whole)
