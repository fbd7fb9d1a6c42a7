"""Ranks for measuring: processes of this machine over gloo, which never outlive their parent."""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

__all__ = ["become_urgent", "run_ranks"]

T = TypeVar("T")

_HANG = timedelta(seconds=60)  # of one message: a rank that waits longer is stuck


def become_urgent() -> bool:
    """Ask for real-time priority, without which other processes are most of what is measured.

    Threads and processes started from here inherit it.

    Returns:
        Whether the system permits it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        return False
    return True


def run_ranks(size: int, program: Callable[[], Iterator[T]], limit: float) -> Iterator[T]:
    """Run ``program`` on every rank, and yield what it yields on rank 0 as it comes.

    Args:
        size: Number of ranks.
        program: Runs with a default process group; what it yields must be picklable.
        limit: Seconds for everything.

    Raises:
        RuntimeError: A rank failed (its own output says why), or time is up.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    ends = time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder:
        results, sender = context.Pipe(duplex=False)
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(
                target=_rank_main,
                args=(rank, size, store, program, sender if rank == 0 else None, limit),
                daemon=True,
            )
            for rank in range(size)
        ]
        try:
            for process in ranks:
                process.start()
            sender.close()
            yield from _receive(results, ends)
            _join(ranks, ends)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _receive(results: Connection[T, T], ends: float) -> Iterator[T]:
    """Yield until rank 0 ends, and with it the only other end of the pipe."""
    with suppress(EOFError):
        while results.poll(max(0.0, ends - time.monotonic())):
            yield results.recv()
        raise RuntimeError("the ranks did not finish in time")


def _join(ranks: list[ForkServerProcess], ends: float) -> None:
    for rank, process in enumerate(ranks):
        process.join(max(0.0, ends - time.monotonic()))
        if process.exitcode != 0:
            raise RuntimeError(f"rank {rank} failed (exit code {process.exitcode})")


def _rank_main(
    rank: int,
    size: int,
    store: str,
    program: Callable[[], Iterator[T]],
    results: Connection[T, T] | None,
    limit: float,
) -> None:
    faulthandler.dump_traceback_later(limit, exit=True)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    become_urgent()  # before the group: gloo's threads inherit it
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=_HANG
    )
    for result in program():
        if results is not None:
            results.send(result)
    dist.barrier()  # a rank that leaves at once closes connections that the other still reads
    dist.destroy_process_group()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
