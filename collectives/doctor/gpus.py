"""The GPUs that NVIDIA's driver has, whatever torch was built for."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence

from ..transport.stopwatch import TimeIsUpError, call_bounded

__all__ = ["find_gpus", "read_links"]

_PATIENCE = 10.0  # seconds; a driver in trouble may not answer
_GRACE = 1.0  # for it to be killed; in a driver that hangs it cannot be
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def find_gpus() -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the GPUs, and how many pairs of them have which connection."""
    if shutil.which("nvidia-smi") is None:
        return (), {}
    names = _ask("--query-gpu=name", "--format=csv,noheader").splitlines()
    links = read_links(_ask("topo", "-m")) if len(names) > 1 else {}
    return tuple(name.strip() for name in names if name.strip()), links


def read_links(matrix: str) -> dict[str, int]:
    r"""Count the connections in the matrix of ``nvidia-smi topo -m``: NV18, PIX, SYS, ...

    Example:
        >>> read_links("     GPU0 GPU1 CPU Affinity\nGPU0 X    NV18 0-63\nGPU1 NV18 X    0-63")
        {'NV18': 1}
    """
    lines = [_ESCAPE.sub("", line).split() for line in matrix.splitlines()]
    head = next((line for line in lines if line[:1] == ["GPU0"] and line[1:2] != ["X"]), [])
    count = sum(bool(re.fullmatch(r"GPU\d+", word)) for word in head)
    rows = [line[1 : count + 1] for line in lines if line and re.fullmatch(r"GPU\d+", line[0])]
    rows = [row for row in rows if "X" in row]
    pairs = ((row[j], i, j) for i, row in enumerate(rows) for j in range(i + 1, len(row)))
    return dict(Counter(link for link, _, _ in pairs).most_common())


def _ask(*arguments: str) -> str:
    try:
        done = call_bounded(lambda: _run(arguments), _PATIENCE + _GRACE)
    except (OSError, subprocess.TimeoutExpired, TimeIsUpError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nvidia-smi", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
