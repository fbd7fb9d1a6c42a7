"""What an import costs, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Import", "time_imports"]

_ROOT = Path(__file__).resolve().parent.parent
_LIMIT = 120.0  # seconds for one process
_FRAMEWORKS = {"lightning", "lightning_fabric", "pytorch_lightning"}

_PROBE = """
import json, sys, time
begun = time.process_time()
import torch
for name in sys.argv[1:]: __import__(name)
print(json.dumps([time.process_time() - begun, sorted(sys.modules)]))
"""


@dataclass(frozen=True)
class Import:
    """One process.

    Args:
        seconds: Of the processor.
        frameworks: Modules of Lightning, in any of its spellings, that it had loaded in the end.
    """

    seconds: float
    frameworks: frozenset[str]


def time_imports(*modules: str) -> Import:
    """Import torch and then ``modules`` in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *modules],
        cwd=_ROOT,
        timeout=_LIMIT,
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, loaded = json.loads(done.stdout)
    return Import(seconds, frozenset(m for m in loaded if m.partition(".")[0] in _FRAMEWORKS))
