"""The script that the launchers' tests start: ``launched.py MODE FOLDER``.

Every rank writes what it found to ``FOLDER/<rank>.json``. The number of hosts, where it is not 1,
is in ``HOSTS``; on each are two ranks.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.context import Adapter
from collectives.errors import ContextError

PER_HOST = 2
HOSTS = int(os.environ.get("HOSTS", "1"))


def report(folder: Path, adapter: Adapter) -> None:
    """Write where this rank is, and what its neighbours sent: other values on each rank."""
    context = adapter.context()
    exchange = Exchange(Ring, adapter, timeout=60)
    to_left, to_right = (torch.full((3,), 10.0 * context.rank + side) for side in (2, 1))
    received = exchange.exchange(to_left=to_left, to_right=to_right)
    found = {
        "rank": context.rank,
        "size": context.size,
        "local_rank": context.local_rank,
        "node_rank": context.node_rank,
        "device": str(exchange.device),
        "from_left": received.from_left.tolist(),
        "from_right": received.from_right.tolist(),
        "process": os.getpid(),
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{context.rank}.json").write_text(json.dumps(found))


def raw(folder: Path) -> None:
    with RawDDPAdapter(timeout=60) as adapter:
        report(folder, adapter)


def torchrun(folder: Path) -> None:
    """A Trainer that is not told of the others, two plain scripts, and one with its own group.

    The first would be two trainings in silence; the others share torchrun's one store, which
    remembers the addresses of groups that are gone.
    """
    refused(folder)
    for part in ("first", "second"):
        raw(folder / part)
    dist.init_process_group("gloo")
    report(folder / "own", RawDDPAdapter())
    dist.destroy_process_group()


def refused(folder: Path) -> None:
    """A Trainer and a Fabric that are not told of the others."""
    from lightning.fabric import Fabric

    from tests.support.saved import SavedModule, quiet_trainer

    def train() -> None:
        quiet_trainer(1, "auto").fit(SavedModule(folder, report))

    def exchange() -> None:
        report(folder, FabricAdapter(Fabric(accelerator="cpu", devices=1)))

    for attempt in (train, exchange):
        note_refusal(folder, attempt)


def note_refusal(folder: Path, attempt: Callable[[], None]) -> None:
    """Write down the error by which an attempt is refused."""
    try:
        attempt()
    except ContextError as error:
        with (folder / f"refused-{os.getpid()}").open("a") as file:
            file.write(f"{error}\n")


def raw_in_spawned(rank: int, folder: Path) -> None:
    with RawDDPAdapter(rank=rank, size=PER_HOST, timeout=60) as adapter:
        report(folder, adapter)


def spawned(folder: Path) -> None:
    spawn(raw_in_spawned, (folder,), nprocs=PER_HOST)


def fabric(folder: Path, **options: object) -> None:
    from lightning.fabric import Fabric

    runtime = Fabric(
        accelerator="cpu",
        devices=PER_HOST,
        num_nodes=HOSTS,
        strategy="ddp",
        **options,  # type: ignore[arg-type] # plugins
    )
    runtime.launch()
    report(folder, FabricAdapter(runtime))


def lightning(folder: Path, strategy: str = "ddp", **options: object) -> None:
    from tests.support.saved import SavedModule, quiet_trainer

    module = SavedModule(folder, report)
    quiet_trainer(PER_HOST, strategy, num_nodes=HOSTS, **options).fit(module)


def lightning_spawn(folder: Path) -> None:
    lightning(folder, "ddp_spawn")


def fabric_kubeflow(folder: Path) -> None:
    from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment

    fabric(folder, plugins=[KubeflowEnvironment()])


def lightning_kubeflow(folder: Path) -> None:
    from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment

    lightning(folder, plugins=[KubeflowEnvironment()])


MODES = (
    *(raw, torchrun, refused, spawned, fabric, lightning, lightning_spawn),
    *(fabric_kubeflow, lightning_kubeflow),
)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {mode.__name__: mode for mode in MODES}[sys.argv[1]](Path(sys.argv[2]))
