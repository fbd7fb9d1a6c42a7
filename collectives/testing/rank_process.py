"""One rank as the pool sees it: a process, a pipe, and two files that it writes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver, process
from pathlib import Path

from . import blame, wire, worker

__all__ = ["RankProcess", "start_fork_server"]

# To start one rank, the fork server and its imports included.
_START_TIMEOUT_S = 120.0

# For a rank to write down where it is.
_STACK_TIMEOUT_S = 2.0


def start_fork_server(preload: Sequence[str]) -> None:
    """Start the process that ranks are forked from; return while it still imports.

    The first call in a process counts: there is one fork server, as for all of
    :mod:`multiprocessing`.

    Args:
        preload: Modules that it imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload, worker.__name__])
    with _environment_variable("PYTHONPATH", os.pathsep.join(sys.path)):
        # Before Python 3.13 the server does not get our sys.path, and skips in silence what it
        # then cannot import.
        forkserver.ensure_running()


@dataclass(slots=True)
class RankProcess:
    """A process that was forked to be a rank. Make it with :meth:`start`."""

    process: process.BaseProcess
    conn: connection.Connection[bytes, bytes]
    log: Path
    stacks: Path
    ready: bool = False
    log_read: int = 0

    @classmethod
    def start(cls, rank: int, stem: Path, preload: Sequence[str]) -> RankProcess:
        """Fork a rank; return while it still gets ready.

        Args:
            rank: Its number.
            stem: Its files are this path with a suffix.
            preload: What it makes sure to have imported.
        """
        log, stacks = stem.with_suffix(".log"), stem.with_suffix(".stacks")
        log.touch()
        stacks.touch()
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        forked = context.Process(
            target=worker.main,
            args=(rank, theirs, str(log), str(stacks), tuple(preload)),
            name=f"rank {rank}",
            daemon=False,  # a rank may start processes of its own (DataLoader workers)
        )
        forked.start()
        theirs.close()  # or the pipe never tells that the rank died
        return cls(forked, ours, log, stacks)

    def wait_ready(self) -> str:
        """Return an empty text once the rank takes jobs, or why it never will."""
        if self.ready:
            return ""
        if not self.conn.poll(_START_TIMEOUT_S):
            return f"did not start in {_START_TIMEOUT_S:g} s"
        try:
            self.conn.recv_bytes()
        except (EOFError, OSError):
            return f"{self.how_it_died()} while it started:\n{self.new_output()}"
        self.ready = True
        return ""

    def send(self, job: bytes) -> None:
        """Send a job. That the rank has died meanwhile shows in :meth:`receive`."""
        with contextlib.suppress(BrokenPipeError):
            self.conn.send_bytes(job)

    def receive(self) -> wire.Ending:
        """Return how the job ended. To be called once the pipe or the sentinel is ready."""
        try:
            if self.conn.poll():
                ending: wire.Ending = wire.loads(self.conn.recv_bytes())
                return ending
        except (EOFError, OSError):
            pass
        at = time.monotonic()
        return wire.Ending("died", self.how_it_died(), b"", at)

    def new_output(self) -> str:
        """Return what the rank has written since the last call."""
        with self.log.open("rb") as file:
            file.seek(self.log_read)
            data = file.read()
        self.log_read += len(data)
        return data.decode(errors="replace")

    def how_it_died(self) -> str:
        """Return signal and place of a crash, or the exit status."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "closed its connection to the pool"
        if code < 0:
            where = blame.main_thread(self._dump())
            return f"was killed by {signal.Signals(-code).name}\n{where}".rstrip()
        return f"exited with status {code}"

    def ask_where(self) -> None:
        """Make the rank write down its stack, which :meth:`where` then returns."""
        if self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR1)

    def where(self) -> str:
        """Return the stack of the rank's main thread, at most two seconds later."""
        deadline = time.monotonic() + _STACK_TIMEOUT_S
        text, before = "", None
        # A dump is written by many small writes: it is whole when it has stopped to grow.
        while (not text or text != before) and time.monotonic() < deadline:
            time.sleep(0.02)
            text, before = self._dump(), text
        return blame.main_thread(text) or "(no answer: the process is stopped or in the kernel)"

    def kill(self) -> None:
        """Kill the rank with all that it started, and forget its files."""
        if self.process.is_alive() and self.process.pid is not None:
            # Before it is ready it has no process group of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.process.close()
        self.conn.close()
        self.log.unlink(missing_ok=True)
        self.stacks.unlink(missing_ok=True)

    def _dump(self) -> str:
        return self.stacks.read_text(errors="replace")


@contextlib.contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
