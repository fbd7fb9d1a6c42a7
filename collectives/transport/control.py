"""What is done to a process group besides moving messages: break it, make it anew, meet."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # documented, not listed

from .group import post_function

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["break_connections", "connection_lost", "make_again", "open_store", "page"]

# Of no message: the digest that could make such a tag comes once in a thousand million.
ABORT_TAG = 0x7FFFFFF0


def break_connections(group: ProcessGroup, device: torch.device) -> None:
    """Make every wait of this process in the group fail at once; from any thread.

    gloo has no call for it: ``abort()``, ``shutdown()`` and ``destroy_process_group()`` all leave a
    thread in its wait. But a receive that times out breaks all pairs of the group, so one does,
    for a message that nobody sends. Other backends have an ``abort()`` that works.
    """
    backend = group._get_backend(device)
    if not isinstance(backend, dist.ProcessGroupGloo):
        with contextlib.suppress(Exception):
            getattr(backend, "abort")()  # noqa: B009 - not in the stubs
        return
    nothing, recv = torch.empty(1, dtype=torch.uint8), post_function(backend, "recv")
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


def connection_lost(group: ProcessGroup, device: torch.device, peer: int) -> bool:
    """Whether the connection to that rank is known to be closed; from any thread.

    gloo tells nobody when a peer dies in the middle of a message, but refuses the next receive from
    it. So one is posted, for a message that nobody sends; on a connection that lives it stays, and
    does no harm.
    """
    backend = group._get_backend(device)
    if not isinstance(backend, dist.ProcessGroupGloo):
        return False
    try:
        post_function(backend, "recv")([torch.empty(1, dtype=torch.uint8)], peer, ABORT_TAG)
    except RuntimeError:
        return True
    return False


def make_again(group: ProcessGroup, timeout: float) -> ProcessGroup:
    """Return a new group of the same ranks; called by all of them."""
    made: ProcessGroup = dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=timedelta(seconds=timeout),
        backend=dist.get_backend(group),
        use_local_synchronization=group is not dist.group.WORLD,
    )
    return made


def open_store(group: ProcessGroup) -> PrefixStore:
    """Return a store for notes among the ranks of a group. May block: call it in a thread.

    The connection is one of our own: a wait of torch's own over a shared one would block it. Ranks
    that torchrun starts again must not read what was left for the ones before.
    """
    store = dist.distributed_c10d._get_default_store()
    clone = getattr(store, "clone", None)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(
        f"torch-collectives/{attempt}/{group.group_name}", store if clone is None else clone()
    )


def page(store: PrefixStore, generation: int) -> PrefixStore:
    """Return the part of a group's store for one of its lives."""
    return PrefixStore(str(generation), store)
