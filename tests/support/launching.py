"""Starts tests/support/launched.py as launchers do, and looks at what its ranks have found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "check_ring", "environment", "launch", "launch_each", "python", "run_all"]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "launched.py"
LIMIT = 150.0  # seconds; each start takes 5 to 20 on an idle machine

_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "NODE_RANK", "GROUP_", "MASTER_", "TORCHELASTIC_", "PET_"),
    *("SLURM_", "OMPI_", "PMI", "PMIX_", "MPI_", "KUBERNETES_"),
)


def environment(folder: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return that of a rank which no launcher but the given variables speaks to."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith(_LAUNCHERS)}
    return {
        **environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "TMPDIR": str(folder),
        **(variables or {}),
    }


def python(mode: str, folder: Path, *launcher: str) -> list[str]:
    """Return the command that runs one mode of the script."""
    return [sys.executable, *launcher, str(SCRIPT), mode, str(folder)]


def launch(folder: Path, mode: str, *launcher: str, **variables: str) -> str:
    """Start one command, wait for its good end, and return what it printed."""
    return run_all(folder, [python(mode, folder, *launcher)], [environment(folder, variables)])


def launch_each(folder: Path, mode: str, variables: Sequence[Mapping[str, str]]) -> str:
    """Start a process with each set of variables, and wait for the good end of all."""
    environments = [environment(folder, one) for one in variables]
    return run_all(folder, [python(mode, folder)] * len(environments), environments)


def run_all(
    folder: Path,
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
) -> str:
    """Run commands side by side; fail unless all end with 0.

    Args:
        folder: For their output.
        commands: What to run.
        environments: Of each.

    Returns:
        What all of them printed.
    """
    logs = [folder / f"log-{number}" for number in range(len(commands))]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_started(command, environ, folder, log))
            for command, environ, log in zip(commands, environments, logs, strict=True)
        ]
        ends = time.monotonic() + LIMIT
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(max(0.0, ends - time.monotonic()))
        ended = [process.poll() for process in processes]
    output = "\n".join(log.read_text() for log in logs)
    assert ended == [0] * len(ended), f"ended with {ended}\n{output}"
    return output


@contextlib.contextmanager
def _started(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                # torchrun's workers have sessions of their own: it must be alive to end them
                os.killpg(process.pid, signal.SIGTERM)


def check_ring(folder: Path, size: int = 2, per_host: int = 2) -> None:
    """Check what each rank of a ring has found about itself, and what its neighbours sent it."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("?.json"))]
    assert len({one.pop("process") for one in found}) == size, "not one process for each rank"
    for rank, one in enumerate(found):
        node, local_rank = divmod(rank, per_host)
        assert one == {
            "rank": rank,
            "size": size,
            "local_rank": local_rank,
            "node_rank": node,
            "device": "cpu",
            "from_left": [10.0 * ((rank - 1) % size) + 1] * 3,
            "from_right": [10.0 * ((rank + 1) % size) + 2] * 3,
        }
