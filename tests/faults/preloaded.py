"""The one process that imports everything; the processes of all rows are forked from it.

``python -m tests.faults.preloaded`` reads orders from its input, one a line, and plays them side by
side. It ends with its input.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from .director import Director, Order
from .matrix import ROWS

__all__ = ["main"]


def main() -> None:
    """Play orders; in a process of a row, play its part."""
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # or every collection in every fork would copy the pages of torch's objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # directors are not waited for
    part = _next_part()
    if part is not None:
        part()


def _next_part() -> Callable[[], None] | None:
    """Return in a process of a row with what it runs, and here when the input has ended."""
    rows = {row.fault: row for row in ROWS}
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            folder = Path(order["folder"])
            row = rows[order["row"]]
            return Director(Order(row, order["verify"], order["over"], folder)).direct()
    return None


if __name__ == "__main__":
    main()
