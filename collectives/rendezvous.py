"""How the processes of a job find each other when nobody set ``MASTER_ADDR``: no torch here.

mpirun, srun and ``torch.multiprocessing.spawn`` give ranks but no address. A port that everybody
computes from the job's number may be taken ("Address already in use"); so on one host rank 0 lets
the system choose a port and leaves it in a file for the others. The file is locked as long as
rank 0 waits for them: one that nobody locks was left by a job that died, and is ignored.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ContextError
from .folder import private_folder

try:
    import fcntl
except ImportError:  # Windows
    _has_locks = False
else:
    _has_locks = True

__all__ = ["find_notice", "post_notice", "slurm_address"]

_REMEDY = "set MASTER_ADDR and MASTER_PORT to an address of rank 0 that all ranks can reach"


@contextmanager
def post_notice(job: str, text: str) -> Iterator[None]:
    """Leave ``text`` for the other processes of ``job`` on this host until the block ends.

    Called by rank 0 only.

    Args:
        job: Names the job; the same on all its ranks, another on every other job.
        text: One line.

    Raises:
        ContextError: Another rank 0 waits under the same name, or there are no file locks.
    """
    path = _path(job)
    if _read_if_locked(path) is not None:
        raise ContextError(
            f"rendezvous: two jobs called {job!r} start at once on this host; {_REMEDY}"
        )
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    try:
        os.write(descriptor, text.encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        Path(draft).replace(path)  # at once, so that a visible notice is whole and locked
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def find_notice(job: str, timeout: float) -> str:
    """Wait for the text that rank 0 of ``job`` leaves on this host.

    Args:
        job: As given to :func:`post_notice`.
        timeout: How long to wait, in seconds.

    Raises:
        ContextError: Nothing came in time, or there are no file locks.
    """
    path = _path(job)
    deadline = time.monotonic() + timeout
    while (text := _read_if_locked(path)) is None:
        if time.monotonic() > deadline:
            raise ContextError(
                f"rendezvous: expected rank 0 of job {job!r} on this host within {timeout:g} s, got"
                f" nothing; start all ranks, or {_REMEDY}"
            )
        time.sleep(0.02)
    return text


def slurm_address(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return (host, port) for a job of several hosts, the same on all ranks; ``None`` if unknown.

    The host is the first of the step, where Slurm puts rank 0. The port follows from the numbers
    of job and step and lies below the range from which systems give out ports.
    """
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    hosts = next((environ[name] for name in names if environ.get(name)), "")
    job = environ.get("SLURM_JOB_ID", "")
    if not hosts or not job.isdecimal():
        return None
    step = environ.get("SLURM_STEP_ID", "")
    number = int(job) * 7 + (int(step) if step.isdecimal() else 0)
    return _first_host(hosts), 15_000 + number % 17_000


def _first_host(hosts: str) -> str:
    """Return the first of Slurm's compressed list: ``gpu[07-09,12],login1`` starts with gpu07."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\])?([^,\[]*)", hosts)
    return "" if match is None else "".join(part or "" for part in match.groups())


def _path(job: str) -> Path:
    if not _has_locks:
        raise ContextError(f"rendezvous: this system has no file locks; {_REMEDY}")
    try:
        return private_folder() / re.sub(r"[^\w.-]", "_", job)
    except PermissionError as error:
        raise ContextError(f"rendezvous: {error}; remove it, or {_REMEDY}") from error


def _read_if_locked(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 1024).decode()
    else:
        return None
    finally:
        os.close(descriptor)
