"""One process of a row, as the row's program sees it."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.topology import Topology

from .row import DEADLINE, JOIN_TIMEOUT, Row

__all__ = ["Player"]

_LINGER = 3.0  # seconds that a helper may still be in a call of torch's
_LONGEST_TEXT = 3000  # so that an event fits into one write to a pipe, which is atomic


@dataclass
class Player:
    """A process that plays its part in a row.

    Args:
        row: Which.
        number: Of this process; its rank where the program does not say otherwise.
        verify: Of the exchanges made here.
        folder: Of this run of the row, for files that its processes share.
        events: Where the director reads what happens here.
    """

    row: Row
    number: int
    verify: Literal["auto", "off"]
    folder: Path
    events: int

    def perform(self, program: Callable[[Player], None]) -> None:
        """Run the program, tell how it ended, and let the error end this process as ever."""
        atexit.register(self._tell_what_is_left)  # the first to register is the last to run
        try:
            program(self)
        except BaseException as error:
            classes = [kind.__name__ for kind in type(error).__mro__]
            self.tell("error", classes=classes, text=str(error)[:_LONGEST_TEXT])
            raise

    def tell(self, kind: str, **details: object) -> None:
        """Tell the director what happens."""
        event = {"by": self.number, "at": time.monotonic(), "kind": kind, **details}
        os.write(self.events, json.dumps(event, ensure_ascii=False).encode() + b"\n")

    def fault(self) -> None:
        """Tell that the fault happens now: detection times count from the last one."""
        self.tell("fault")

    def send_signal(
        self,
        number: int,
        what: signal.Signals,
        *,
        then: signal.Signals | None = None,
        after: float = 0.0,
    ) -> None:
        """Let the director signal a process, and once more ``after`` seconds; it is the fault."""
        self.tell("signal", to=number, what=what, then=then, after=after)

    @contextmanager
    def joined(self, rank: int | None = None, size: int | None = None) -> Iterator[RawDDPAdapter]:
        """Be a rank of a process group; by default this process's number of all processes."""
        rank = self.number if rank is None else rank
        size = self.row.size if size is None else size
        if self.row.store == "rank 0":
            adapter = RawDDPAdapter(rank=rank, size=size, timeout=JOIN_TIMEOUT)
        else:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
            adapter = RawDDPAdapter(timeout=JOIN_TIMEOUT)
        with adapter:
            yield adapter

    def exchange(
        self,
        adapter: RawDDPAdapter,
        topology: Topology | Callable[[int], Topology] = Ring,
        name: str = "kv",
    ) -> Exchange:
        """Make an Exchange with the row's deadline."""
        return Exchange(topology, adapter, name=name, timeout=DEADLINE, verify=self.verify)

    def wait_for(self, *names: str) -> None:
        """Wait until files of other processes are in the row's folder."""
        while not all((self.folder / name).exists() for name in names):
            time.sleep(0.01)

    def _tell_what_is_left(self) -> None:
        end = time.monotonic() + _LINGER
        while (threads := _others()) and time.monotonic() < end:
            time.sleep(0.02)
        self.tell("end", threads=threads)


def _others() -> list[str]:
    """Return the names of all threads but the main one."""
    return [t.name for t in threading.enumerate() if t is not threading.main_thread()]
