"""The store over which the ranks of a job meet, to make their process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # documented, but not listed
    HashStore,
    Store,
    TCPStore,
)

from ..errors import ContextError
from ..launcher import has_agent_store
from ..rendezvous import find_notice, post_notice, slurm_address
from .stopwatch import Stopwatch, TimeIsUpError, call_bounded

if TYPE_CHECKING:
    from ..launcher import Launch

__all__ = ["Meeting", "meeting"]

_RIVAL_S = 1.0  # seconds for the program that holds rank 0's port to answer as a store


class Meeting:
    """Where the ranks of one job meet.

    Args:
        store: That they share.
        address: Of the store, for error texts; "" where it has none.
        taken: Why rank 0 could not open a store there: the store is that of another rank 0, and
            may be used only to find out which.
    """

    def __init__(self, store: Store, address: str = "", taken: str = "") -> None:
        self.store, self.address, self.taken = store, address, taken


@contextmanager
def meeting(launch: Launch, watch: Stopwatch) -> Iterator[Meeting]:
    """Open the store; on one host without an address, it is found until the block ends.

    Called by every process of the job.

    Args:
        launch: Which process this is.
        watch: How long to wait for rank 0.

    Raises:
        ContextError: Nobody says where rank 0 is, it is not there, or another program is.
    """
    if launch.size == 1:
        yield Meeting(HashStore())  # no port: there is nobody to meet
        return
    address = _address(launch)
    if address is not None:
        yield _serve(*address, launch, watch) if _is_host(launch) else _connect(*address, watch)
        return
    job = f"{launch.launcher}-{launch.job or f'parent-{os.getppid()}'}"
    if launch.rank == 0:
        found = _serve("127.0.0.1", 0, launch, watch)
        with post_notice(job, found.address.rpartition(":")[2]):
            yield found
    else:
        watch.awaited = f"rank 0 of job {job!r} on this host"
        yield _connect("127.0.0.1", int(find_notice(job, watch.left())), watch)


def _address(launch: Launch) -> tuple[str, int] | None:
    """Return (host, port) of the store; ``None``: on this host, at a port to be told."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host is not None and port is not None:
        return host, _port(port)
    if launch.one_host:
        return None
    found = slurm_address(os.environ) if launch.launcher == "srun" else None
    if found is None:
        raise ContextError(
            f"RawDDPAdapter: {launch.launcher} says rank {launch.rank} of {launch.size}, but not"
            " where rank 0 is: expected MASTER_ADDR and MASTER_PORT, got neither or one; set both"
            " to an address of rank 0 that all ranks can reach"
        )
    return host or found[0], found[1] if port is None else _port(port)


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 2**16:
        return int(text)
    raise ContextError(
        f"RawDDPAdapter: MASTER_PORT: expected a number from 1 to 65535, got {text!r}"
    )


def _is_host(launch: Launch) -> bool:
    """Return whether this process opens the store: rank 0, unless torchrun's agent has done so."""
    return launch.rank == 0 and not has_agent_store(os.environ)


def _serve(host: str, port: int, launch: Launch, watch: Stopwatch) -> Meeting:
    try:
        # Its own client goes to the loopback: a wrong MASTER_ADDR is the others' error to name,
        # and a server that this process has already is used again.
        store = TCPStore(
            "localhost" if port else host,
            port,
            is_master=True,
            timeout=timedelta(seconds=watch.left()),
            wait_for_workers=False,
            multi_tenant=True,
            use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
        )
    except dist.DistNetworkError as error:
        if "address already in use" not in str(error).lower():
            raise
        taken = (
            f"RawDDPAdapter: port {port} (MASTER_PORT) is in use on this host, so rank 0 of"
            f" {launch.size} cannot listen there; leave --master-port and MASTER_PORT out or choose"
            " another port, and see that no other process has RANK=0"
        )
        rival = _rival(port)
        if rival is None:
            raise ContextError(taken) from error
        return Meeting(rival, f"{host}:{port}", taken)
    return Meeting(store, f"{host}:{store.port}")


def _rival(port: int) -> Store | None:
    """Return the store behind a port that is in use; ``None`` where it is something else."""
    try:
        return call_bounded(
            lambda: TCPStore(
                "localhost", port, is_master=False, timeout=timedelta(seconds=_RIVAL_S)
            ),
            _RIVAL_S,
        )
    except (TimeIsUpError, RuntimeError):
        return None


def _connect(host: str, port: int, watch: Stopwatch) -> Meeting:
    """Wait for somebody to listen, then for a store to answer.

    torch's own client waits longer than it is told, and says less.
    """
    watch.awaited = f"rank 0 at {host}:{port}"
    while True:
        try:
            socket.create_connection((host, port), min(5.0, watch.left())).close()
            break
        except OSError as error:
            if watch.over():
                raise ContextError(_unreachable(host, port, error, watch.seconds)) from error
        watch.stop.wait(0.05)
    watch.awaited = f"a store to answer at {host}:{port}, where another program may listen"
    try:
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=watch.left()))
    except RuntimeError as error:
        raise ContextError(
            f"RawDDPAdapter: expected the store of rank 0 at {host}:{port} (MASTER_ADDR,"
            f" MASTER_PORT), got another program or one that ended ({error}); see the output of"
            " rank 0, or choose another port"
        ) from error
    return Meeting(store, f"{host}:{port}")


def _unreachable(host: str, port: int, error: OSError, seconds: float) -> str:
    if isinstance(error, socket.gaierror):
        return (
            f"RawDDPAdapter: MASTER_ADDR={host!r}: expected the name or address of rank 0's host,"
            f" got one that cannot be resolved ({error}) within {seconds:g} s; correct it"
        )
    return (
        f"RawDDPAdapter: expected rank 0 to listen at {host}:{port} (MASTER_ADDR, MASTER_PORT)"
        f" within {seconds:g} s, got {error.strerror or error}; start rank 0, see its own output,"
        " or correct the address"
    )
