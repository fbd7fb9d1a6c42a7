"""Where rows are played: several at a time, since most of their time is waiting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Literal

from .judge import Outcome, Verdict, judge
from .row import STALL, Over, Row

__all__ = ["Stage"]

_AT_A_TIME = 3
_START = 60.0  # seconds for the imports

_ROOT = Path(__file__).parents[2]


class Stage:
    """Plays rows in processes that are forked from one.

    Args:
        folder: For the files of all rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0
        self._writing = Lock()
        self._pool = ThreadPoolExecutor(_AT_A_TIME)
        environment = {n: v for n, v in os.environ.items() if not n.startswith(_NOT_INHERITED)}
        environment |= {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            # torch's store asks for the name of every client that connects, and answers nobody
            # meanwhile: a name server that is slow must not decide a row.
            "RES_OPTIONS": "timeout:1 attempts:1",
            "COLLECTIVES_STALL": str(STALL),
            "PYTHONPATH": str(_ROOT),
        }
        self._log = folder / "preloaded.log"
        with self._log.open("w") as log:
            self._preloaded = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.preloaded"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # so that close() ends all that came from it, at once
            )

    def play(self, row: Row, verify: Literal["auto", "off"], over: Over) -> Future[Verdict]:
        """Play and judge a row, as soon as there is room."""
        self._runs += 1
        folder = self._folder / f"{self._runs}"
        folder.mkdir()
        return self._pool.submit(self._play, row, verify, over, folder)

    def close(self) -> None:
        """End everything that still runs."""
        os.killpg(self._preloaded.pid, signal.SIGKILL)
        self._preloaded.communicate()
        self._pool.shutdown(cancel_futures=True)

    def _play(self, row: Row, verify: str, over: Over, folder: Path) -> Verdict:
        how = {"row": row.fault, "verify": verify, "over": over, "folder": str(folder)}
        order = json.dumps(how)
        assert self._preloaded.stdin is not None
        with self._writing:
            self._preloaded.stdin.write(order + "\n")
            self._preloaded.stdin.flush()
        result = folder / "result.json"
        deadline = time.monotonic() + row.limit + _START
        while not result.exists():
            if time.monotonic() > deadline or self._preloaded.poll() is not None:
                raise RuntimeError(f"{row.fault}: was not played:\n{self._log.read_text()}")
            time.sleep(0.02)
        return judge(row, Outcome.read(result))


# What a launcher of the tests themselves may have set.
_NOT_INHERITED = ("MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "TORCHELASTIC_", "OMPI_")
