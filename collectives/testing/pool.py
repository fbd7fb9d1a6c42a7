"""A pool of rank processes that outlives a test.

Importing torch takes seconds, forking a process that has imported it takes milliseconds. So a
fork server imports torch once, ranks are forked from it, a program borrows the first ``size`` of
them and gets a new process group in them, and any failure throws all of them away: nothing of a
failed program reaches the next one, and there is nothing to repair. ::

    with RankPool(folder) as pool:
        values = pool.run(program, size=4)  # of rank 0, 1, 2, 3

Needs the fork server of :mod:`multiprocessing`: Linux or macOS.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import TypeVar

from . import blame, wire
from .rank_process import RankProcess, start_fork_server
from .wire import RANK, Ending

__all__ = ["PRELOAD", "RANK", "RankPool", "RanksFailedError", "RanksSkippedError"]

T = TypeVar("T")

PRELOAD: tuple[str, ...] = ("torch.distributed", "pytest")
"""What every program needs, or its first run in a new rank would pay for the import."""

# How long the other ranks get to end once one has failed. Most are blocked on it, and its closed
# sockets wake them at once under gloo.
_GRACE_S = 1.0


class RanksFailedError(AssertionError):
    """At least one rank raised, died or did not finish; the text says which, and where."""


class RanksSkippedError(Exception):
    """Every rank called ``pytest.skip``."""


class RankPool:
    """Processes 0 to n - 1, started when a program first needs them.

    Args:
        folder: Where rendezvous files and the output of ranks go; made when missing.
        preload: Modules that are imported once, before ranks are forked.
    """

    def __init__(self, folder: Path, *, preload: Sequence[str] = PRELOAD) -> None:
        self._folder = folder
        self._preload = tuple(preload)
        self._ranks: list[RankProcess] = []
        self._output: dict[int, str] = {}
        self._runs = 0
        self._started = 0
        self._owner = os.getpid()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(
        self,
        program: Callable[..., T],
        *args: object,
        size: int,
        timeout: float = 30.0,
        backend: str | None = "gloo",
        kwargs: Mapping[str, object] | None = None,
    ) -> list[T]:
        """Call ``program(*args, **kwargs)`` on each rank of a new process group.

        Each rank starts in this process's environment, folder and warning filters, with the
        seeds, dtype and grad mode of a new process, and computes in one thread.

        Args:
            program: Any callable; closures and lambdas will do.
            args: Sent to every rank, which gets its own number in place of :data:`RANK`.
            size: World size.
            timeout: Seconds for the whole run, the start of missing ranks excluded. The group's
                own timeout is half of it, so that a rank that waits in vain says so itself.
            backend: Of the default process group; ``None`` for no group at all.
            kwargs: As ``args``.

        Returns:
            What the program returned, by rank.

        Raises:
            RanksFailedError: A rank raised, died or was still running at the timeout. All ranks
                have been killed.
            RanksSkippedError: Every rank called ``pytest.skip``.
            TypeError: The program or an argument cannot be pickled.
            ValueError: ``size`` is less than 1.
        """
        __tracebackhide__ = True
        if size < 1:
            message = f"RankPool.run: a world size is 1 or more, got {size}"
            raise ValueError(message)
        self._runs += 1
        job = wire.Job(
            program=program,
            args=args,
            kwargs=dict(kwargs or {}),
            size=size,
            backend=backend,
            rendezvous=str(self._folder / f"rendezvous-{os.getpid()}-{self._runs}"),
            group_timeout=max(1.0, timeout / 2),
            environ=dict(os.environ),
            cwd=os.getcwd(),  # noqa: PTH109 - a str is what travels
            warnings=wire.warning_filters(),
        )
        data = wire.dumps_job(job)
        ranks = self._borrow(size)
        started = time.monotonic()
        endings = self._finish(ranks, data, started + timeout)
        kinds = {ending.kind for ending in endings.values()}
        if kinds == {"skipped"}:
            raise RanksSkippedError(endings[0].text)
        if kinds != {"value"}:
            raise RanksFailedError(blame.describe(endings, started))
        return [wire.loads(endings[number].value) for number in range(size)]

    def take_output(self) -> dict[int, str]:
        """Return what ranks have written since the last call, by rank; silent ranks left out."""
        output, self._output = self._output, {}
        return {rank: text for rank, text in output.items() if text}

    def discard(self) -> None:
        """Kill every rank with all that it started; the next run starts new ones."""
        for rank in self._ranks:
            rank.kill()
        self._ranks.clear()

    def close(self) -> None:
        """Let the ranks leave by themselves (coverage is written then), else kill them."""
        atexit.unregister(self.close)
        if os.getpid() != self._owner:
            return  # a fork of the pool's process leaves: the ranks are not its own
        for rank in self._ranks:
            rank.conn.close()
        deadline = time.monotonic() + 10.0
        for rank in self._ranks:
            rank.process.join(max(0.0, deadline - time.monotonic()))
        self.discard()

    def _borrow(self, size: int) -> list[RankProcess]:
        self._drop_dead()
        if len(self._ranks) < size:
            atexit.unregister(self.close)
            atexit.register(self.close)  # else multiprocessing waits at exit for idle ranks
            self._folder.mkdir(parents=True, exist_ok=True)
            start_fork_server(self._preload)
        while len(self._ranks) < size:
            self._started += 1
            stem = self._folder / f"rank-{len(self._ranks)}-{self._started}"
            self._ranks.append(RankProcess.start(len(self._ranks), stem, self._preload))
        for number, rank in enumerate(self._ranks):
            if trouble := rank.wait_ready():
                self.discard()
                raise RanksFailedError(f"rank {number} {trouble}")
        return self._ranks[:size]

    def _drop_dead(self) -> None:
        dead = {n: rank for n, rank in enumerate(self._ranks) if not rank.process.is_alive()}
        if not dead:
            return
        deaths = ", ".join(f"rank {n} {rank.how_it_died()}" for n, rank in dead.items())
        self.discard()
        message = f"between two programs {deaths}; all ranks are started anew"
        warnings.warn(message, RuntimeWarning, stacklevel=4)

    def _finish(
        self, ranks: Sequence[RankProcess], data: bytes, deadline: float
    ) -> dict[int, Ending]:
        """Run the job ``data`` and return how it ended, by rank."""
        endings: dict[int, Ending] = {}
        try:
            for rank in ranks:
                rank.send(data)
            _collect(ranks, deadline, endings)
        finally:
            # A caller's interrupt comes here too, and leaves some ranks in mid-program.
            for number, rank in enumerate(ranks):
                self._output[number] = self._output.get(number, "") + rank.new_output()
            kinds = {ending.kind for ending in endings.values()}
            if len(endings) < len(ranks) or kinds not in ({"value"}, {"skipped"}):
                self.discard()
        return endings


def _collect(ranks: Sequence[RankProcess], deadline: float, endings: dict[int, Ending]) -> None:
    while len(endings) < len(ranks):
        waiting = {n: rank for n, rank in enumerate(ranks) if n not in endings}
        # The sentinel too: a process that a rank forked keeps the rank's end of the pipe open.
        handles = [h for rank in waiting.values() for h in (rank.conn, rank.process.sentinel)]
        ready = connection.wait(handles, max(0.0, deadline - time.monotonic()))
        if not ready:
            endings.update(_where_they_are(waiting))
            return
        for number, rank in waiting.items():
            if rank.conn in ready or rank.process.sentinel in ready:
                ending = rank.receive()
                endings[number] = ending
                if ending.kind in ("raised", "died"):
                    deadline = min(deadline, time.monotonic() + _GRACE_S)


def _where_they_are(stuck: Mapping[int, RankProcess]) -> dict[int, Ending]:
    at = time.monotonic()
    for rank in stuck.values():
        rank.ask_where()
    return {number: Ending("stuck", rank.where(), b"", at) for number, rank in stuck.items()}
