"""Who starts the ranks: the real launchers where they are at hand, else what they set.

Each start takes seconds, so what needs Lightning in every process is left to ``make matrix``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cells import runtimes
from tests.support.launching import (
    check_ring,
    environment,
    launch,
    launch_each,
    python,
    run_all,
)

TORCHRUN = ("-m", "torch.distributed.run")
BESIDE_PYTHON = str(Path(sys.executable).parent)
MPI = os.environ.get("MPI_BIN", BESIDE_PYTHON)  # `make matrix` has an environment for it
MPIRUN = shutil.which("mpirun", path=MPI) or shutil.which("mpirun")


def slurm(rank: int) -> dict[str, str]:
    """Return what srun sets for one of two tasks on one host."""
    place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    job = {"SLURM_JOB_ID": "8652", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "train"}
    tasks = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    hosts = {"SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_NODELIST": "localhost"}
    return {**place, **job, **tasks, **hosts}


def pod(rank: int, port: int) -> dict[str, str]:
    """Return what Kubeflow's PyTorchJob sets in one of two pods of one process."""
    job = {"RANK": str(rank), "WORLD_SIZE": "2", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for_torchrun = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(rank)}
    return {**job, **address, **for_torchrun}


def open_mpi(rank: int) -> dict[str, str]:
    """Return what Open MPI's mpirun sets for one of two processes on one host."""
    place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
    sizes = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    return {**place, **sizes, "PMIX_NAMESPACE": "prterun-host-17@1"}


def hydra(rank: int) -> dict[str, str]:
    """Return what mpirun of MPICH and of Intel sets."""
    place = {"PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)}
    return {**place, "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "kvs_17_0"}


def mpirun(folder: Path, mode: str) -> None:
    if MPIRUN is None:
        pytest.skip("there is no mpirun here; `make matrix` installs one")
    program = str(Path(MPI) / Path(sys.executable).name)
    asked = subprocess.run([program, "-c", "import mpi4py"], capture_output=True, check=False)
    if mode != "raw" and asked.returncode:
        pytest.skip("Lightning asks mpi4py for the ranks; `make matrix` installs it")
    options = ("--allow-run-as-root", "--oversubscribe", "-n", "2")
    command = [MPIRUN, *options, program, *python(mode, folder)[1:]]
    run_all(folder, [command], [environment(folder)])


def check_refused(folder: Path, launcher: str) -> None:
    """Check what a Trainer and a Fabric were told on both ranks, which did not know of them."""
    texts = [path.read_text().splitlines() for path in folder.glob("refused-*")]
    assert sorted(len(lines) for lines in texts) == [2, 2]
    for lines in texts:
        for line, runtime in zip(lines, ("Trainer", "Fabric"), strict=True):
            expected = f"{launcher} started 2 processes, but the {runtime} runs each of them alone"
            assert expected in line
    assert all(sum(f"(rank {r} of 2)" in t[0] for t in texts) == 1 for r in range(2))


@pytest.mark.cell("torchrun", "raw")
@pytest.mark.cell("Trainer or Fabric of one process under a launcher: an error", "lightning")
@pytest.mark.cell("Trainer or Fabric of one process under a launcher: an error", "fabric")
def test_torchrun_starts_scripts_with_and_without_a_group_of_their_own(tmp_path: Path) -> None:
    launch(tmp_path, "torchrun", *TORCHRUN, "--nproc-per-node=2")
    for part in ("first", "second", "own"):
        check_ring(tmp_path / part)
    check_refused(tmp_path, "torchrun")


@pytest.mark.matrix
@runtimes("torchrun", "lightning", "fabric")
def test_torchrun_starts_the_processes_of_a_trainer_and_of_a_fabric(
    runtime: str, tmp_path: Path
) -> None:
    launch(tmp_path, runtime, *TORCHRUN, "--nproc-per-node=2")
    check_ring(tmp_path)


@runtimes("started by the script itself")
def test_a_script_starts_its_own_ranks_without_an_address(runtime: str, tmp_path: Path) -> None:
    """By the Trainer, by Fabric's launcher, or by spawn of torch.multiprocessing."""
    launch(tmp_path, "spawned" if runtime == "raw" else runtime)
    check_ring(tmp_path)


@pytest.mark.cell("ddp_spawn", "lightning")
def test_ddp_spawn_with_an_exchange_made_in_init(tmp_path: Path) -> None:
    launch(tmp_path, "lightning_spawn")
    check_ring(tmp_path)


@pytest.mark.matrix
@runtimes("SLURM")
def test_the_variables_of_srun_are_enough(runtime: str, tmp_path: Path) -> None:
    launch_each(tmp_path, runtime, [slurm(rank) for rank in range(2)])
    check_ring(tmp_path)


@pytest.mark.matrix
@runtimes("Kubeflow")
def test_pods_of_kubeflow_are_hosts_of_one_process(runtime: str, port: int, tmp_path: Path) -> None:
    mode = "raw" if runtime == "raw" else f"{runtime}_kubeflow"
    launch_each(tmp_path, mode, [pod(rank, port) for rank in range(2)])
    check_ring(tmp_path, per_host=1)


@pytest.mark.matrix
@pytest.mark.cell("Kubeflow", "raw")
def test_torchrun_takes_its_arguments_from_kubeflows_variables(tmp_path: Path) -> None:
    variables = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0"}
    launch(tmp_path, "raw", *TORCHRUN, **variables)
    check_ring(tmp_path)


@pytest.mark.matrix
@pytest.mark.cell("mpirun", "raw")
@pytest.mark.parametrize("variables", [open_mpi, hydra], ids=["Open MPI", "MPICH"])
def test_the_variables_of_mpirun_are_enough_for_a_plain_script(
    variables: Callable[[int], dict[str, str]], tmp_path: Path
) -> None:
    launch_each(tmp_path, "raw", [variables(rank) for rank in range(2)])
    check_ring(tmp_path)


@pytest.mark.matrix
@pytest.mark.cell("mpirun", "raw")
def test_a_real_mpirun_starts_a_plain_script(tmp_path: Path) -> None:
    mpirun(tmp_path, "raw")
    check_ring(tmp_path)


@pytest.mark.matrix
@runtimes("mpirun", "lightning", "fabric")
def test_a_real_mpirun_starts_the_processes_of_a_trainer_and_of_a_fabric(
    runtime: str, tmp_path: Path
) -> None:
    mpirun(tmp_path, runtime)
    check_ring(tmp_path)
