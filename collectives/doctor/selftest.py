"""Two ranks on this host, started for real: do they find each other, and is it fast?"""

from __future__ import annotations

import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from .pair import RESULT, STAGE
from .rank import Trial, trial_from_json

__all__ = ["PairTest", "run_pair"]

_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "SLURM",
            "TORCHELASTIC", "OMPI_", "PMI", "MPI_")  # fmt: skip
_START = 60.0  # seconds for Python and torch to be there
_AFTER = 3.0  # for the other rank, once one has failed
_TICK = 0.1
_TAIL = 8  # lines of output that are kept


@dataclass(frozen=True, slots=True)
class PairTest:
    """How the self-test ended.

    Args:
        trial: The slower of the two; with the first error, if there was one.
        started: Seconds until both had imported torch.
        output: The last lines that the ranks printed, where it failed.
    """

    trial: Trial
    started: float = 0.0
    output: str = ""


@dataclass(slots=True)
class _Run:
    begun: float
    trials: dict[int, Trial] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    imported: dict[int, float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    stage: str = "starting Python and torch"


def run_pair(
    environ: Mapping[str, str], timeout: float, tell: Callable[[str, float], None]
) -> PairTest:
    """Start two ranks over gloo, let them exchange, and wait for both within a bound.

    Args:
        environ: Of this process; what launchers have set is left out.
        timeout: For the ranks to find each other, in seconds.
        tell: Is told, again and again, what is waited for and for how many seconds.
    """
    job = f"selftest-{secrets.token_hex(4)}"
    known = {k: v for k, v in environ.items() if not k.startswith(_FOREIGN)}
    known |= {"OMP_NUM_THREADS": "1", "COLLECTIVES_FLIGHT_RECORD": "off"}
    run, lines = _Run(time.monotonic()), queue.Queue[tuple[int, str]]()
    with ExitStack() as stack:  # where the second rank does not even start, the first must not stay
        for rank in range(2):
            process = _start(rank, job, timeout, known)
            pump = threading.Thread(target=_pump, args=(rank, process, lines), daemon=True)
            stack.callback(_end, process, pump)
            pump.start()
        _follow(run, lines, run.begun + _START + 2 * timeout, tell)
    return _conclude(run)


def _end(process: subprocess.Popen[str], pump: threading.Thread) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # one that hangs in the system cannot be killed
        process.wait(_AFTER)
    if pump.is_alive():
        pump.join(_AFTER)


def _start(
    rank: int, job: str, timeout: float, environ: Mapping[str, str]
) -> subprocess.Popen[str]:
    # They import what this process imports, from wherever it was started.
    paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109 - text for a variable
    return subprocess.Popen(
        [sys.executable, "-m", "collectives.doctor.pair", str(rank), job, str(timeout)],
        env={**environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _pump(rank: int, process: subprocess.Popen[str], lines: queue.Queue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put((rank, line))
    lines.put((rank, ""))  # it has ended


def _follow(
    run: _Run,
    lines: queue.Queue[tuple[int, str]],
    deadline: float,
    tell: Callable[[str, float], None],
) -> None:
    while len(run.trials.keys() | run.ended) < 2 and time.monotonic() < deadline:
        tell(run.stage, time.monotonic() - run.begun)
        try:
            rank, line = lines.get(timeout=_TICK)
        except queue.Empty:
            continue
        if _is_the_end(run, rank, line):
            deadline = min(deadline, time.monotonic() + _AFTER)


def _is_the_end(run: _Run, rank: int, line: str) -> bool:
    """Take note of a line; return whether the rank has failed, so that the other waits in vain."""
    if not line:
        run.ended.add(rank)
    elif line.startswith(STAGE):
        run.imported.setdefault(rank, time.monotonic() - run.begun)
        run.stage = line.removeprefix(STAGE).strip()
    elif line.startswith(RESULT):
        run.trials[rank] = trial_from_json(line.removeprefix(RESULT))
        return bool(run.trials[rank].error)
    else:
        run.lines = [*run.lines[1 - _TAIL :], f"[rank {rank}] {line.rstrip()}"]
    return not line and rank not in run.trials


def _conclude(run: _Run) -> PairTest:
    started = max(run.imported.values(), default=0.0)
    output = "\n".join(run.lines)
    failed = next((trial for trial in run.trials.values() if trial.error), None)
    silent = sorted({0, 1} - run.trials.keys(), key=lambda rank: rank not in run.ended)
    if failed is not None:
        return PairTest(failed, started, output)
    if silent:
        how = "ended without a word" if silent[0] in run.ended else f"was still {run.stage}"
        error = f"rank {silent[0]} of 2 {how} ({time.monotonic() - run.begun:.0f} s)"
        return PairTest(Trial(error=error), started, output)
    slower = max(run.trials.values(), key=lambda trial: trial.small)
    return PairTest(slower, started)
