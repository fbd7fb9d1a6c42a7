"""The store over which the ranks of a job meet, to make their process group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from torch import distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # documented, but not listed
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.rendezvous import rendezvous

from ..errors import ContextError
from ..rendezvous import find_notice, post_notice, slurm_address

if TYPE_CHECKING:
    from ..launcher import Launch

__all__ = ["meeting"]


@contextmanager
def meeting(launch: Launch, timeout: float) -> Iterator[Store]:
    """Give a store for one process group; torch's errors inside the block become ours.

    Called by every process of the job.

    Args:
        launch: Which process this is.
        timeout: How long to wait for the others, in seconds.

    Raises:
        ContextError: Nobody says where rank 0 is, the ranks did not all come in time, or the
            address is in use.
    """
    try:
        store = _store(launch, timeout)
        # torchrun's store outlives a group, and gloo would read the addresses of the last one.
        number = store.add(f"RawDDPAdapter/joined/{launch.rank}", 1)
        yield PrefixStore(f"RawDDPAdapter/{number}", store)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        address = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        at = "" if address == "?:?" else f" at {address}"
        raise ContextError(
            f"RawDDPAdapter: the {launch.size} ranks did not all meet{at} within {timeout:g} s"
            f" (rank {launch.rank} of {launch.size}): {error}; start all ranks; where the address"
            " is in use, leave --master-port and MASTER_PORT out or choose another port"
        ) from error


def _store(launch: Launch, timeout: float) -> Store:
    """Return the store over which the ranks meet."""
    if launch.size == 1:
        return HashStore()  # no port: there is nobody to meet
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        limit = timedelta(seconds=timeout)
        store, *_ = next(rendezvous("env://", launch.rank, launch.size, timeout=limit))
        return cast("Store", store)
    if launch.one_host:
        return _meet_on_host(launch, timeout)
    address = slurm_address(os.environ) if launch.launcher == "srun" else None
    if address is None:
        raise ContextError(
            f"RawDDPAdapter: {launch.launcher} says rank {launch.rank} of {launch.size}, but not"
            " where rank 0 is: expected MASTER_ADDR and MASTER_PORT, got neither or one; set both"
            " to an address of rank 0 that all ranks can reach"
        )
    host, port = address
    return TCPStore(
        os.environ.get("MASTER_ADDR", host),
        int(os.environ.get("MASTER_PORT", port)),
        launch.size,
        is_master=launch.rank == 0,
        timeout=timedelta(seconds=timeout),
    )


def _meet_on_host(launch: Launch, timeout: float) -> Store:
    """Meet at a port that the system chooses, told by a notice on this host."""
    job = f"{launch.launcher}-{launch.size}-{launch.job or f'parent-{os.getppid()}'}"
    limit = timedelta(seconds=timeout)
    if launch.rank != 0:
        port = int(find_notice(job, timeout))
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        store.set(f"here/{launch.rank}", "")
        return store
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False)
    with post_notice(job, str(store.port)):
        store.wait([f"here/{rank}" for rank in range(1, launch.size)], limit)
    return store
