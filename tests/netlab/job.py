"""One job: ranks in the hosts, forked from one process that has torch already."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch

from .hosts import INTERFACE, Hosts, enter_host

__all__ = ["Job", "Program", "Rank", "Report"]

_LIMIT = 60.0  # seconds for everything that one rank does
_LEAVE = 10.0  # seconds from a rank's report to the end of its process
_NOT_INHERITED = ("MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")


@dataclass
class Report:
    """How a rank fared.

    Args:
        longest: Seconds of its longest exchange.
        error: Class of the error that ended it; "" at a good end.
        text: Of the error.
        elapsed: Seconds that the exchange took which raised it.
    """

    longest: float = 0.0
    error: str = ""
    text: str = ""
    elapsed: float = 0.0


@dataclass(frozen=True)
class Rank:
    """What a program knows of its rank."""

    number: int
    size: int
    report: Report
    _pipe: Connection[str | Report, str]

    def wait_at_gate(self) -> None:
        """Wait until the test has set the scene."""
        self._pipe.send("at the gate")
        self._pipe.recv()


Program = Callable[[Rank], None]


class Job:
    """Runs a program on ranks in hosts; all processes are gone at the end of the block.

    Args:
        hosts: Rank 0 is in the first one, and with it the store.
        per_host: Ranks in each.
        program: Runs on each rank, importable from its module.
        folder: For the output of the ranks.
    """

    def __init__(self, hosts: Hosts, per_host: int, program: Program, folder: Path) -> None:
        self.size = len(hosts.names) * per_host
        self._logs = [folder / f"rank-{rank}.log" for rank in range(self.size)]
        self._pipes: list[Connection[str, str | Report]] = []
        self._processes: list[ForkServerProcess] = []
        try:
            for rank in range(self.size):
                self._start(rank, hosts, per_host, program)
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, hosts: Hosts, per_host: int, program: Program) -> None:
        host, local_rank = divmod(rank, per_host)
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(per_host),
            "MASTER_ADDR": hosts.address(0),
            "MASTER_PORT": "29500",  # within the host, so nobody else has it
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "COLLECTIVES_STALL": "0.5",
            "COLLECTIVES_FLIGHT_RECORD": "off",
        }
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_rank_main,
            args=(hosts.names[host], environment, self._logs[rank], program, theirs),
            name=f"rank {rank}",
        )
        process.start()
        theirs.close()  # or the pipe never tells that the rank died
        self._pipes.append(ours)
        self._processes.append(process)

    def open_gate(self, scene: Callable[[], None]) -> None:
        """Set the scene once all ranks are at the gate, and let them pass."""
        for rank, received in enumerate(self._receive()):
            if isinstance(received, Report):
                self._fail(rank, f"raised {received.error}: {received.text}")
        scene()
        for pipe in self._pipes:
            pipe.send("go on")

    def reports(self) -> list[Report]:
        """Return how the ranks fared, when all processes have ended by themselves."""
        found = [received for received in self._receive() if isinstance(received, Report)]
        assert len(found) == self.size, "a rank waits at a gate that was not opened"
        ends = time.monotonic() + _LEAVE
        for rank, process in enumerate(self._processes):
            process.join(max(0.0, ends - time.monotonic()))
            if process.exitcode != 0:
                self._fail(rank, f"did not end well in {_LEAVE:g} s: {process.exitcode}")
        return found

    def _receive(self) -> Iterable[str | Report]:
        ends = time.monotonic() + _LIMIT
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, ends - time.monotonic())):
                self._fail(rank, "said nothing in time")
            try:
                yield pipe.recv()
            except EOFError:
                self._fail(rank, "ended without a word")

    def _fail(self, rank: int, what: str) -> NoReturn:
        logs = "\n".join(log.read_text() for log in self._logs if log.exists())
        raise AssertionError(f"rank {rank} of {self.size} {what}\n{logs}")

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. Idempotent."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _rank_main(
    host: str,
    environment: dict[str, str],
    log: Path,
    program: Program,
    pipe: Connection[str | Report, str],
) -> None:
    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    for name in list(os.environ):
        if name.startswith(_NOT_INHERITED):
            del os.environ[name]
    os.environ.update(environment)
    enter_host(host)
    torch.set_num_threads(1)
    report = Report()
    rank = Rank(int(environment["RANK"]), int(environment["WORLD_SIZE"]), report, pipe)
    try:
        program(rank)
    except Exception as error:  # noqa: BLE001 - the test says which one is right
        traceback.print_exc()
        report.error, report.text = type(error).__name__, str(error)
    with contextlib.suppress(BrokenPipeError):
        pipe.send(report)
    atexit._run_exitfuncs()  # as at the end of a script; multiprocessing leaves them out
