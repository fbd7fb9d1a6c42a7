"""The loop of a rank process: take a job, run its program, report, again."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from . import wire

__all__ = ["main"]

# A rank talks to ranks of this host only, and there are more ranks than cores.
_DEFAULTS = {
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "OMP_NUM_THREADS": "1",
}


def main(
    rank: int, conn: Connection[bytes, bytes], log: str, stacks: str, preload: Sequence[str]
) -> None:
    """Serve jobs until the pool hangs up.

    Args:
        rank: Number of this rank in every job.
        conn: To the pool.
        log: File that takes the output of this process.
        stacks: File that takes the stack of each thread on SIGUSR1 and on a crash.
        preload: Modules to have imported before the first job.
    """
    # A process group of its own: the pool can kill a rank with all that it started, and the
    # terminal's Ctrl-C reaches the pool alone.
    os.setpgid(0, 0)
    _redirect_output(log)
    threading.Thread(target=_leave_with_parent, name="leave-with-parent", daemon=True).start()
    for name in preload:
        importlib.import_module(name)  # the fork server has done it, or hides why it could not
    torch.set_num_threads(1)
    gc.freeze()  # so that the collection after each job looks at what that job made, no more
    with Path(stacks).open("a") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        conn.send_bytes(b"ready")
        _serve(rank, conn)


def _serve(rank: int, conn: Connection[bytes, bytes]) -> None:
    while True:
        try:
            data = conn.recv_bytes()
        except EOFError:
            return
        ending = _run(rank, data)
        sys.stdout.flush()
        sys.stderr.flush()
        conn.send_bytes(wire.dumps(ending))
        if ending.kind == "raised":
            # Peers may be waiting for this rank: only its closed sockets tell them. What it
            # started goes with it.
            os.killpg(0, signal.SIGKILL)


def _run(rank: int, data: bytes) -> wire.Ending:
    try:
        ending = wire.Ending("value", "", _execute(rank, data), time.monotonic())
    except pytest.skip.Exception as error:
        ending = wire.Ending("skipped", str(error), b"", time.monotonic())
    except BaseException as error:  # noqa: BLE001 - every outcome goes to the pool
        at = time.monotonic()
        return wire.Ending("raised", _format(error), b"", at)
    # Cycles of the program may hold its group, sockets and threads included. A DDP object must
    # go before its group besides: as the last owner of a destroyed one it joins gloo's threads
    # with the GIL held, and can wait for ever (pytorch #56297).
    gc.collect()
    return ending


def _execute(rank: int, data: bytes) -> bytes:
    job: wire.Job = wire.loads(data)
    _adopt_state(job)
    _replace_group(rank, job)
    value = _call(rank, job)
    try:
        return wire.dumps(value)
    except Exception as error:
        message = f"the program returned a {type(value).__name__}, which cannot be sent to the pool"
        raise TypeError(message) from error


def _call(rank: int, job: wire.Job) -> object:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as monkeypatch:
        warnings.resetwarnings()
        for action, message, category, module, line in job.warnings:
            warnings.filterwarnings(
                action,  # type: ignore[arg-type] # a str, for all that warnings.filters says
                message,
                category,
                module,
                line,
                append=True,
            )
        here = {wire.OnRank.NUMBER: rank, wire.OnRank.MONKEYPATCH: monkeypatch}
        args = [here[a] if isinstance(a, wire.OnRank) else a for a in job.args]
        kwargs = {k: here[a] if isinstance(a, wire.OnRank) else a for k, a in job.kwargs.items()}
        return job.program(*args, **kwargs)


def _adopt_state(job: wire.Job) -> None:
    """Start from the pool's environment and folder, and from torch's defaults."""
    _set_environ({**_DEFAULTS, **job.environ})
    os.chdir(job.cwd)
    random.seed(0)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)


def _set_environ(wanted: Mapping[str, str]) -> None:
    # Only what differs: setenv is not safe beside threads of torch that read the environment.
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _replace_group(rank: int, job: wire.Job) -> None:
    """Replace the last job's default group by this one's.

    Only now, when the pool has heard from every rank of the last job: a rank that left earlier
    would close sockets that a slower one still reads.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    if job.backend is None:
        return
    hook = sys.excepthook
    dist.init_process_group(
        job.backend,
        store=FileStore(job.rendezvous, job.size),
        rank=rank,
        world_size=job.size,
        timeout=timedelta(seconds=job.group_timeout),
    )
    sys.excepthook = hook  # torch wraps it once more in every init_process_group


def _format(error: BaseException) -> str:
    summary = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = summary
    while link is not None:
        while link.stack and link.stack[0].filename == __file__:
            del link.stack[0]
        link = link.__cause__ or link.__context__
    return "".join(summary.format())


def _redirect_output(log: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _leave_with_parent() -> None:
    """Kill this rank, with all that it started, when the pool's process ends in any way."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)
