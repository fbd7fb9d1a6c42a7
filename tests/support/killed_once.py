"""Ranks of which the last kills itself in the first attempt: ``killed_once.py FOLDER SECONDS``.

The others are busy for so long then, and not in any exchange.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from adapters.raw_ddp import RawDDPAdapter
from tests.support.launched import report

if __name__ == "__main__":
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    first = not (folder / "killed").exists()  # before anybody can have come as far as to be
    with RawDDPAdapter(timeout=60) as adapter:
        context = adapter.context()
        report(folder / ("first" if first else "last"), adapter)
        if first and context.rank == context.size - 1:
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if first:
            time.sleep(seconds)
            report(folder / "first", adapter)  # the rank that is gone is missed
    print(f"rank {context.rank} ended well", flush=True)
