"""One of the two ranks of the self-test: ``python -m collectives.doctor.pair RANK JOB TIMEOUT``.

It prints what it waits for, and at last its trial, a line each that begins with a mark; so that
the parent can tell them from whatever else torch prints.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import torch

from ..launcher import Launch
from .trial import try_exchange

__all__ = ["RESULT", "STAGE", "main"]

STAGE, RESULT = "doctor-stage ", "doctor-result "


def main(rank: int, job: str, timeout: float) -> None:
    """Take part in the self-test, on the CPU, and end the process."""
    launch = Launch("doctor", rank, 2, rank, 0, one_host=True, job=job)
    trial = try_exchange(launch, torch.device("cpu"), timeout, lambda text: _print(STAGE + text))
    _print(RESULT + json.dumps(asdict(trial)))
    os._exit(0)  # gloo's threads need no farewell, and must not delay the end


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
