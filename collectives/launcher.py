"""What a launcher's environment variables say about this process: integers only, no torch.

The table is in order of trust: torchrun inside srun names the process, srun only its agent, and so
does mpirun inside a Slurm job. ``LOCAL_RANK`` is never taken for a rank, and ``WORLD_SIZE`` alone
says nothing: Lightning's own launcher sets it, without ``RANK``, in processes it looks after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = [
    "Launch",
    "find_job",
    "find_launch",
    "find_place",
    "has_agent_store",
    "may_restart",
    "restart_count",
    "unfinished_launch",
    "unused_torchrun",
    "variables_of",
]


class Launch(NamedTuple):
    """One process of a started job.

    Args:
        launcher: Its name, for error texts.
        rank: Position among all processes of the job.
        size: Number of processes of the job.
        local_rank: Position on this host; ``None`` when the launcher does not say.
        node_rank: Number of this host.
        one_host: All processes are known to run on this host.
        job: What tells this job from others on the host; "" when the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    node_rank: int
    one_host: bool
    job: str


class _Names(NamedTuple):
    """The variables of one launcher; "" where it has none."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    node_rank: str
    job: tuple[str, ...]


_KUBEFLOW = "Kubeflow"  # a process for each pod, by torchrun's variables but without torchrun

_TABLE = (
    _Names(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
        ("TORCHELASTIC_RUN_ID",),
    ),
    _Names(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "", ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Names(
        "mpirun (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "",
        ("PMI_JOBID",),
    ),
    _Names(
        "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
)  # fmt: skip


def find_launch(environ: Mapping[str, str]) -> Launch | None:
    """Return which process of which job this is; ``None`` when no launcher says so.

    A launcher counts when it gives rank and size. One that gives the local rank too goes first:
    ``srun --mpi=pmi2`` sets PMI's rank and size, but only Slurm's local rank.

    Args:
        environ: The process's environment.
    """
    started = [(names, found) for names in _TABLE if (found := _read(names, environ)) is not None]
    for _, launch in started:
        if launch.local_rank is not None:
            return launch
    return started[0][1] if started else None


def find_job(environ: Mapping[str, str]) -> str:
    """Return what is the same on all processes of a job and differs between jobs; "" if unknown.

    torchrun's default name, "none", tells nothing. Each node of a job may be started by an srun of
    its own, so Slurm's step counts only where srun gave the ranks; the parts of a heterogeneous
    job have numbers of their own, which tell nothing either.

    Args:
        environ: The process's environment.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run not in ("", "none"):
        return f"torchrun {run}"
    launch = find_launch(environ)
    if launch is not None and launch.launcher not in ("torchrun", "srun") and launch.job:
        return f"{launch.launcher} {launch.job}"
    job = environ.get("SLURM_JOB_ID", "")
    if not job or "SLURM_HET_SIZE" in environ:
        return ""
    by_srun = launch is not None and launch.launcher == "srun"
    step = environ.get("SLURM_STEP_ID", "") if by_srun else ""
    return f"Slurm {job}.{step}" if step else f"Slurm {job}"


def restart_count(environ: Mapping[str, str]) -> int:
    """Return how often torchrun has started the processes of this host anew after a failure here.

    On another host it may be another number: an agent whose workers were well when it heard of the
    failure starts them anew as well, and does not count it.
    """
    return _number(environ, "TORCHELASTIC_RESTART_COUNT") or 0


def has_agent_store(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent holds the store at ``MASTER_PORT``, for all attempts."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def may_restart(environ: Mapping[str, str]) -> bool:
    """Return whether torchrun may start the processes of this job anew after a failure."""
    return environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def find_place(environ: Mapping[str, str], rank: int, size: int) -> tuple[int, int]:
    """Return (local rank, node rank) of a process whose rank is known from a process group.

    Without any variable that says so, all processes are taken to run on one host, as those of
    ``torch.multiprocessing.spawn`` do.

    Args:
        environ: The process's environment.
        rank: In the default process group.
        size: Of the default process group.
    """
    launch = find_launch(environ)
    if launch is not None and (launch.rank, launch.size) == (rank, size):
        local_rank, node_rank = launch.local_rank, launch.node_rank
    else:  # Lightning's own launcher sets these two
        local_rank, node_rank = _number(environ, "LOCAL_RANK"), _number(environ, "NODE_RANK") or 0
    return rank if local_rank is None else local_rank, node_rank


def variables_of(launcher: str) -> tuple[str, ...]:
    """Return the variables that say rank, size, local rank, ... under a launcher, in this order.

    Args:
        launcher: Its name, as in :class:`Launch`.
    """
    if launcher == _KUBEFLOW:
        return _TABLE[0].rank, _TABLE[0].size
    names = next((names for names in _TABLE if names.launcher == launcher), None)
    if names is None:
        return ()
    said = (names.rank, names.size, names.local_rank, names.local_size, names.node_rank)
    return tuple(name for name in said if name)


def unfinished_launch(environ: Mapping[str, str]) -> str:
    """Return what is missing or wrong in a launcher's variables; "" if nothing is.

    Variables that fit a single process (``RANK=0``, ``WORLD_SIZE=1``) are complete by themselves.
    """
    wrong = unused_torchrun(environ) or _impossible_rank(environ)
    if wrong:
        return wrong
    rank, size, local_rank = (environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    for name, value in (("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local_rank)):
        if value is not None and not value.isdecimal():
            return f"{name}: expected a number, got {value!r}"
    if rank is not None and size is not None:
        return "" if int(rank) < int(size) else f"RANK={rank} is not below WORLD_SIZE={size}"
    if size is not None and int(size) != 1:
        return f"WORLD_SIZE={size} is set, RANK is not"
    if rank is not None and int(rank) != 0:
        return f"RANK={rank} is set, WORLD_SIZE is not"
    if local_rank is not None and int(local_rank) != 0 and size is None:
        return f"LOCAL_RANK={local_rank} is set, RANK and WORLD_SIZE are not"
    return ""


def unused_torchrun(environ: Mapping[str, str]) -> str:
    """Return which variable asks torchrun for several processes, where it was not used; or "".

    Kubeflow gives torchrun its arguments so (``PET_NNODES``, ``PET_NPROC_PER_NODE``). A script that
    a pod starts with python would train alone on each, in silence. A PyTorchJob of one process per
    pod sets ``RANK`` and ``WORLD_SIZE`` as well, and needs no torchrun.
    """
    if "LOCAL_RANK" in environ:
        return ""
    names = ["PET_NPROC_PER_NODE"] if "RANK" in environ else ["PET_NNODES", "PET_NPROC_PER_NODE"]
    for name in names:
        most = environ.get(name, "").rpartition(":")[2]  # "1:4": from one to four
        if most.isdecimal() and int(most) > 1:
            return f"{name}={environ[name]} is for torchrun, which did not start this process"
    return ""


def _impossible_rank(environ: Mapping[str, str]) -> str:
    """Return which rank a launcher names that its size does not have, where none makes sense."""
    if find_launch(environ) is not None:
        return ""
    for names in _TABLE[1:]:
        rank, size = _number(environ, names.rank), _size(names, environ)
        if rank is not None and size is not None and rank >= size:
            return f"{names.rank}={rank} is not below {size}, the number of processes of the job"
    return ""


def _read(names: _Names, environ: Mapping[str, str]) -> Launch | None:
    rank = _number(environ, names.rank)
    size = _size(names, environ)
    if rank is None or size is None or rank >= size:
        return None
    local_rank = _number(environ, names.local_rank)
    local_size = _number(environ, names.local_size)
    node_rank = _number(environ, names.node_rank)
    if names.launcher == "torchrun" and local_rank is None and "KUBERNETES_PORT" in environ:
        # A PyTorchJob without torchrun: one process in each pod.
        return Launch(_KUBEFLOW, rank, size, 0, rank, one_host=size == 1, job="")
    if node_rank is None:  # MPI does not say: right for hosts filled one after the other
        node_rank = (rank - (local_rank or 0)) // local_size if local_size else 0
    one_host = size == 1 or local_size == size or _slurm_nodes(names, environ) == 1
    job = ".".join(_present(names.job, environ))
    return Launch(names.launcher, rank, size, local_rank, node_rank, one_host, job)


def _size(names: _Names, environ: Mapping[str, str]) -> int | None:
    return _slurm_size(environ) if names.launcher == "srun" else _number(environ, names.size)


def _slurm_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of tasks that srun started, which need not be those of the allocation.

    A shell inside ``salloc`` and a batch script see the allocation's ``SLURM_NTASKS``, but are one
    process: the shell has ``SLURM_STEP_NUM_TASKS=1`` or no ``SLURM_PROCID``, the batch script has
    ``ENVIRONMENT=BATCH`` and no step.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if tasks is None and environ.get("ENVIRONMENT") != "BATCH":
        return _number(environ, "SLURM_NTASKS")
    return tasks


def _slurm_nodes(names: _Names, environ: Mapping[str, str]) -> int | None:
    if names.launcher != "srun":
        return None
    nodes = _number(environ, "SLURM_STEP_NUM_NODES")
    return _number(environ, "SLURM_NNODES") if nodes is None else nodes


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None


def _present(names: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    return [environ[name] for name in names if environ.get(name)]
