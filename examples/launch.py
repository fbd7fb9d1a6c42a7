"""Starting the runs as a user would: each as a command of its own, with an end in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JOBS", "Job", "LaunchError", "launch", "on_this_host"]

_ROOT = Path(__file__).resolve().parent.parent
_GRACE = 10.0  # seconds between asking a run to end and killing it


class LaunchError(RuntimeError):
    """A run failed, or did not end in time."""


@dataclass(frozen=True)
class Job:
    """One of the runs that are compared.

    Args:
        run: Its name in the records.
        title: Its name for people.
        module: What to run.
        torchrun: torchrun starts the ranks; else the module does, told by ``--ranks``.
    """

    run: str
    title: str
    module: str
    torchrun: bool = False

    def command(self, ranks: int) -> list[str]:
        """Return the command that a user would type, with this Python's own torchrun."""
        if not self.torchrun:
            return [sys.executable, "-m", self.module, "--ranks", str(ranks)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, "--nproc-per-node", str(ranks), "-m", self.module]


JOBS = (
    Job("whole-batch", "whole batch", "examples.whole_batch"),
    Job("lightning", "Lightning", "examples.lightning_siglip"),
    Job("fabric", "Fabric", "examples.fabric_siglip"),
    Job("torchrun", "torchrun", "examples.torchrun_siglip", torchrun=True),
)


def launch(job: Job, *, ranks: int, options: list[str], timeout: float) -> None:
    """Run ``job`` to its end.

    Args:
        job: What to run.
        ranks: Processes that share the batch.
        options: More of the run's command line.
        timeout: Seconds, start-up included.

    Raises:
        LaunchError: It failed or took longer. Its own output stands above; none of its processes
            is left.
    """
    process = subprocess.Popen(
        [*job.command(ranks), *options],
        cwd=_ROOT,
        env={**os.environ, **on_this_host(os.environ)},
        start_new_session=True,  # so that the ranks that the run starts can be ended with it
    )
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{job.title}: not done after {timeout:.0f} s (raise --timeout)"
        ) from None
    finally:
        if process.returncode != 0:  # None: it runs still, or Ctrl-C came
            _end(process)
    if code != 0:
        raise LaunchError(f"{job.title}: ended with exit code {code}; its output stands above")


def on_this_host(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what to set where all ranks are here: they meet on the loopback, and share cores."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    ours = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
    return {name: value for name, value in ours.items() if name not in inherited}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a run's session; asked first, torchrun ends the sessions it made."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue
