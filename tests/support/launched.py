"""The script that the launchers' tests start: ``launched.py MODE FOLDER``.

Every rank writes what it found to ``FOLDER/<rank>.json``.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter
from collectives.errors import ContextError

SIZE = 2


def report(folder: Path, adapter: Adapter) -> None:
    context = adapter.context()
    exchange = Exchange(Ring, adapter)
    mine = torch.tensor([float(context.rank)])
    found = {
        "rank": context.rank,
        "size": context.size,
        "local_rank": context.local_rank,
        "from_left": exchange.shift(mine).item(),
        "process": os.getpid(),
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{context.rank}.json").write_text(json.dumps(found))


def torchrun(folder: Path) -> None:
    """A Trainer that is not told of the others, two plain scripts, and one with its own group.

    The first would be two trainings in silence; the others share torchrun's one store, which
    remembers the addresses of groups that are gone.
    """
    from tests.support.saved import SavedModule, quiet_trainer

    try:
        quiet_trainer(1, "auto").fit(SavedModule(folder, report))
    except ContextError as error:
        (folder / f"refused-{os.environ['RANK']}").write_text(str(error))
    for part in ("first", "second"):
        with RawDDPAdapter(timeout=60) as adapter:
            report(folder / part, adapter)
    dist.init_process_group("gloo")
    report(folder / "own", RawDDPAdapter())
    dist.destroy_process_group()


def raw_in_spawned(rank: int, folder: Path) -> None:
    with RawDDPAdapter(rank=rank, size=SIZE, timeout=60) as adapter:
        report(folder, adapter)


def spawned(folder: Path) -> None:
    spawn(raw_in_spawned, (folder,), nprocs=SIZE)


def fabric(folder: Path) -> None:
    from lightning.fabric import Fabric

    runtime = Fabric(accelerator="cpu", devices=SIZE, strategy="ddp")
    runtime.launch()
    report(folder, FabricAdapter(runtime))


def lightning(folder: Path, strategy: str = "ddp") -> None:
    from tests.support.saved import SavedModule, quiet_trainer

    module = SavedModule(folder, report)
    quiet_trainer(SIZE, strategy).fit(module)


def lightning_spawn(folder: Path) -> None:
    lightning(folder, "ddp_spawn")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    modes = (torchrun, spawned, fabric, lightning, lightning_spawn)
    {mode.__name__: mode for mode in modes}[sys.argv[1]](Path(sys.argv[2]))
