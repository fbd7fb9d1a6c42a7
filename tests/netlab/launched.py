"""The script that torchrun starts in each host: ``launched.py FOLDER``.

Every rank that got right values writes where it was to ``FOLDER/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.netlab.exchanging import exchange_rightly
from tests.netlab.job import Report

if __name__ == "__main__":
    with RawDDPAdapter(timeout=60) as adapter:
        exchange = Exchange(Ring, adapter, timeout=30)
        for step in range(20):
            exchange_rightly(exchange, step, 1000, Report())
        context = adapter.context()
        found = [context.rank, context.size, context.local_rank, context.node_rank]
        Path(sys.argv[1], f"{context.rank}.json").write_text(json.dumps(found))
