"""Two workers of Ray Train on this host: ``under_ray.py MODE FOLDER``.

Ray starts the processes and makes their process group; our adapters find it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import ray
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

WORKERS = 2


def raw(folder: Path) -> None:
    from adapters.raw_ddp import RawDDPAdapter
    from tests.support.launched import report

    report(folder / "attached", RawDDPAdapter())
    with RawDDPAdapter() as adapter:  # uses the group that is there, and leaves it alone
        report(folder / "entered", adapter)
    report(folder, RawDDPAdapter())


def lightning(folder: Path) -> None:
    from lightning.pytorch import Trainer
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    from tests.support.launched import note_refusal, report
    from tests.support.saved import SavedModule, quiet_trainer

    # One that is not told of Ray's workers, and one that is.
    note_refusal(folder, lambda: quiet_trainer(1, "auto").fit(SavedModule(folder, report)))
    trainer = Trainer(
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    prepare_trainer(trainer).fit(SavedModule(folder, report))


def fabric(folder: Path) -> None:
    from tests.support.launched import fabric as run

    run(folder)


MODES = (raw, lightning, fabric)


def train(program: Callable[[Path], None], folder: Path) -> None:
    trainer = TorchTrainer(
        lambda: program(folder),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, use_gpu=False),
        run_config=ray.train.RunConfig(storage_path=str(folder / "storage"), name="run"),
    )
    trainer.fit()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        _temp_dir=sys.argv[3],
    )
    train({mode.__name__: mode for mode in MODES}[sys.argv[1]], Path(sys.argv[2]))
    ray.shutdown()
