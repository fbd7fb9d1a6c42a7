"""What is done to a process group besides moving messages: break it, make it anew, meet."""

from __future__ import annotations

import contextlib
import os
import weakref
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not listed

from ..launcher import has_agent_store, may_restart
from .group import post_function, wire_of
from .stopwatch import TimeIsUpError, call_bounded

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "break_connections",
    "connection_lost",
    "destroy",
    "goes_over_gloo",
    "make_again",
    "meet_at_end",
    "note_own_store",
    "open_store",
    "page",
    "spans_all",
    "store_outlives_ranks",
]

# A reference to the default store, and the connection to it.
_line: list[Any] = []

# A reference to the default store, where the group was made here.
_own_store: list[weakref.ref[Store]] = []

# Of no message: the digest that could make such a tag comes once in a thousand million.
ABORT_TAG = 0x7FFFFFF0
_END_TAG = 0x7FFFFFF1


def break_connections(group: ProcessGroup, device: torch.device) -> None:
    """Make every wait of this process in the group fail at once; from any thread.

    gloo has no call for it: ``abort()``, ``shutdown()`` and ``destroy_process_group()`` all leave a
    thread in its wait. But a receive that times out breaks all pairs of the group, so one does,
    for a message that nobody sends. Other backends have an ``abort()`` that works.
    """
    group = wire_of(group)
    backend = group._get_backend(device)
    if not isinstance(backend, dist.ProcessGroupGloo):
        with contextlib.suppress(Exception):
            getattr(backend, "abort")()  # noqa: B009 - not in the stubs
        return
    nothing = torch.empty(1, dtype=torch.uint8, device="cpu")
    recv = post_function(backend, "recv")
    for peer in range(group.size()):
        if peer == group.rank():
            continue
        try:
            work = recv([nothing], peer, ABORT_TAG)
        except RuntimeError:
            continue  # that pair is closed already
        with contextlib.suppress(RuntimeError):
            work.wait(timedelta(milliseconds=1))
        return


def goes_over_gloo(group: ProcessGroup, device: torch.device) -> bool:
    """Whether messages of that device go over gloo."""
    return isinstance(group._get_backend(device), dist.ProcessGroupGloo)


def connection_lost(group: ProcessGroup, device: torch.device, peer: int) -> bool:
    """Whether the connection to that rank is known to be closed; from any thread.

    gloo tells nobody when a peer dies in the middle of a message, but refuses the next receive from
    it. So one is posted, for a message that nobody sends; on a connection that lives it stays, and
    does no harm.
    """
    backend = wire_of(group)._get_backend(device)
    if not isinstance(backend, dist.ProcessGroupGloo):
        return False
    try:
        nothing = torch.empty(1, dtype=torch.uint8, device="cpu")
        post_function(backend, "recv")([nothing], peer, ABORT_TAG)
    except RuntimeError:
        return True
    return False


def make_again(group: ProcessGroup, timeout: float) -> ProcessGroup:
    """Return a new group of the same ranks; called by all of them."""
    made: ProcessGroup = dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=timedelta(seconds=timeout),
        backend=dist.get_backend(group),
        use_local_synchronization=not spans_all(group),
    )
    return made


def open_store(group: ProcessGroup) -> PrefixStore:
    """Return a store for notes among the ranks of a group. May block: call it in a thread.

    The connection is one of our own: a wait of torch's own over a shared one would block it.
    """
    return PrefixStore(f"torch-collectives/{group.group_name}", _own_line())


def store_outlives_ranks() -> bool:
    """Whether ranks that torchrun started before may have left notes in the default store.

    Not where the group was made here: its part of the store belongs to these processes alone.
    """
    store = dist.distributed_c10d._get_default_store()
    own = bool(_own_store) and _own_store[0]() is store
    return has_agent_store(os.environ) and may_restart(os.environ) and not own


def note_own_store() -> None:
    """Remember that the default store is one that no other processes have used."""
    _own_store[:] = [weakref.ref(dist.distributed_c10d._get_default_store())]


def _own_line() -> Store:
    """Return a connection to the default store, one for all groups.

    The store looks up the name of every address that connects, and answers nobody meanwhile.
    """
    store = dist.distributed_c10d._get_default_store()
    if not _line or _line[0]() is not store:
        clone = getattr(store, "clone", None)
        _line[:] = [weakref.ref(store), store if clone is None else clone()]
    line: Store = _line[1]
    return line


def spans_all(group: ProcessGroup) -> bool:
    """Whether every rank of the job is a member."""
    return group.size() == dist.get_world_size()


def destroy(group: ProcessGroup) -> None:
    """End a group that was made here; on each rank by itself."""
    dist.destroy_process_group(group)


def meet_at_end(group: ProcessGroup, timeout: float) -> None:
    """Return when all ranks of the group have called this; Ctrl-C ends the wait.

    Raises:
        RuntimeError: One of them has ended, or does not come within the timeout.
    """
    if dist.get_backend(group) != "gloo":  # of the current device, which is one of this thread
        dist.barrier(group)
        return
    backend = group._get_backend(torch.device("cpu"))
    rounds = partial(_disseminate, backend, group.rank(), group.size(), timeout)
    try:
        call_bounded(rounds, timeout)
    except TimeIsUpError as error:
        raise RuntimeError(f"not all ranks came within {timeout:g} s") from error
    except RuntimeError:
        break_connections(group, torch.device("cpu"))  # others may wait for this rank only
        raise


def _disseminate(backend: object, rank: int, size: int, timeout: float) -> None:
    """Hear of every rank: gloo's barrier, without its thread.

    That thread lets go of its last collective some time after it, and needs Python's lock for it
    (torch 2.13): where the interpreter is about to end, the process dies of SIGABRT.
    """
    limit = timedelta(seconds=timeout)
    send, recv = post_function(backend, "send"), post_function(backend, "recv")
    there, here = (torch.zeros(1, dtype=torch.uint8, device="cpu") for _ in range(2))
    for distance in (1 << number for number in range((size - 1).bit_length())):
        works = (
            recv([here], (rank - distance) % size, _END_TAG),
            send([there], (rank + distance) % size, _END_TAG),
        )
        for work in works:
            work.wait(limit)


def page(store: PrefixStore, name: str) -> PrefixStore:
    """Return the part of a group's store for one of its lives."""
    return PrefixStore(name, store)
