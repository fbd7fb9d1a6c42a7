"""What launchers have set, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...launcher import (
    find_launch,
    has_agent_store,
    may_restart,
    unfinished_launch,
    variables_of,
)
from ..findings import Finding
from ..snapshot import Snapshot

__all__ = ["CHECKS", "agents", "outranked", "tasks_per_node"]

_TORCHRUN = "start with `torchrun --nproc-per-node N script.py`"


def half_a_launch(found: Snapshot) -> Iterator[Finding]:
    """``RANK`` without ``WORLD_SIZE``, the reverse, ``LOCAL_RANK`` alone, or no numbers."""
    missing = unfinished_launch(found.environ)
    if not missing:
        return
    lightning = "NODE_RANK" in found.environ and "RANK" not in found.environ
    of_lightning = (
        " (Lightning's own launcher sets LOCAL_RANK, NODE_RANK and WORLD_SIZE in the processes that"
        " it starts: inside of them the Trainer knows better)"
    )
    consequence, topic = _what_torch_says(found.environ)
    yield Finding(
        "problem",
        missing,
        f"{_TORCHRUN}, or set both RANK and WORLD_SIZE, with MASTER_ADDR and MASTER_PORT; unset"
        " what a script has left behind",
        consequence + (of_lightning if lightning else ""),
        topic=topic,
    )


def _what_torch_says(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return what comes of variables that name no rank of a job, and its name in the catalogue."""
    given = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if name in environ}
    for value in given.values():
        if not value.isdecimal():
            return f"torch says: invalid literal for int() with base 10: {value!r}", ""
    if len(given) == 2:
        last = int(given["WORLD_SIZE"]) - 1
        counted = f"Ranks are counted from 0: the last one is {last}."
        return (counted if int(given["RANK"]) > last >= 0 else ""), ""
    (absent, *_) = (name for name in ("RANK", "WORLD_SIZE") if name not in given)
    return f"torch says: environment variable {absent} expected, but not set.", "no-environment"


def rank_0_of_nothing(found: Snapshot) -> Iterator[Finding]:
    """``RANK=0`` alone: this process is taken for one by itself, whatever others were started."""
    environ = found.environ
    if environ.get("RANK") != "0" or "WORLD_SIZE" in environ:
        return
    if find_launch(environ) is not None or unfinished_launch(environ):
        return
    yield Finding(
        "warning",
        "RANK=0 is set, WORLD_SIZE is not: this process takes itself for the only one",
        "set WORLD_SIZE as well, or unset RANK; with several ranks, the others need both",
        "Exchanges are local copies. torch says: environment variable WORLD_SIZE expected, but not"
        " set.",
    )


def no_address(found: Snapshot) -> Iterator[Finding]:
    """Rank and size are set by hand, perhaps in a pod, and nobody says where rank 0 is."""
    launch = find_launch(found.environ)
    if launch is None or launch.launcher not in ("torchrun", "Kubeflow") or launch.size == 1:
        return
    # An empty address is what `export MASTER_ADDR=$(...)` leaves where the command failed; an empty
    # port is a number that is none, and named as such.
    there = {
        "MASTER_ADDR": bool(found.environ.get("MASTER_ADDR")),
        "MASTER_PORT": "MASTER_PORT" in found.environ,
    }
    missing = [name for name, is_there in there.items() if not is_there]
    if missing:
        yield Finding(
            "problem",
            f"RANK={launch.rank} and WORLD_SIZE={launch.size} are set, {' and '.join(missing)}"
            f" {'is' if len(missing) == 1 else 'are'} not",
            f"set {' and '.join(missing)} to an address of rank 0 that all ranks can reach and a"
            f" free port there, the same on all ranks; or {_TORCHRUN}",
            f"torch says: environment variable {missing[0]} expected, but not set.",
            topic="no-address",
        )


def slurm_without_srun(found: Snapshot) -> Iterator[Finding]:
    """A batch script, or a shell of salloc, has an allocation of several tasks but is one task."""
    tasks = _number(found.environ, "SLURM_NTASKS")
    if tasks < 2 or find_launch(found.environ) is not None:
        return
    interactive = found.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    yield Finding(
        "warning" if interactive else "problem",
        f"Slurm gave this job {tasks} tasks, but srun did not start this process",
        "put `srun` before `python`; or ask for one task per node and use torchrun",
        "SLURM_NTASKS is set and SLURM_PROCID says no rank: this is one process. Lightning would"
        " take it for rank 0 and wait for the others for ever.",
        ("Lightning-AI/pytorch-lightning#15011", "Lightning-AI/pytorch-lightning#14873"),
    )


def slurm_tasks_for_lightning(found: Snapshot) -> Iterator[Finding]:
    """``--ntasks`` without ``--ntasks-per-node``, or a number that the step does not have."""
    environ = found.environ
    tasks, per_node = _number(environ, "SLURM_NTASKS"), _number(environ, "SLURM_NTASKS_PER_NODE")
    started = _number(environ, "SLURM_STEP_NUM_TASKS")
    nodes = _number(environ, "SLURM_STEP_NUM_NODES") or _number(environ, "SLURM_NNODES") or 1
    if tasks > 1 and "SLURM_NTASKS_PER_NODE" not in environ:
        yield Finding(
            "warning",
            f"Slurm was given --ntasks={tasks} without --ntasks-per-node",
            f"use --ntasks-per-node={tasks // nodes or 1} --nodes={nodes} for Lightning;"
            " RawDDPAdapter needs neither",
            f"Lightning says: You set `--ntasks={tasks}` in your SLURM bash script, but this"
            " variable is not supported.",
            ("Lightning-AI/pytorch-lightning#15011",),
        )
    elif per_node and started and per_node * nodes != started:
        yield Finding(
            "warning",
            f"Slurm has --ntasks-per-node={per_node} on {nodes} node(s), but srun started {started}"
            " task(s)",
            "give srun no --ntasks of its own, or the product of both numbers",
            f"Lightning believes in {per_node * nodes} ranks, and waits for those that nobody"
            " started.",
            ("Lightning-AI/pytorch-lightning#20391",),
        )


def several_agents_on_a_node(found: Snapshot) -> Iterator[Finding]:
    """Srun started more torchruns than the job has nodes: each is a job of its own."""
    environ = found.environ
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    if "TORCHELASTIC_RUN_ID" in environ and tasks > agents(environ):
        yield Finding(
            "problem",
            f"srun started torchrun {tasks} times, but each counts {agents(environ)} agent(s)",
            "use --ntasks-per-node=1 with torchrun, and give torchrun --nnodes and --rdzv-endpoint",
            "Each of them starts a whole job, all at one address.",
        )


def restart_that_reads_stale_addresses(found: Snapshot) -> Iterator[Finding]:
    """Torchrun's store outlives an attempt, and gloo reads the addresses of the one before."""
    environ = found.environ
    if (
        may_restart(environ)
        and has_agent_store(environ)
        and environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
    ):
        yield Finding(
            "warning",
            f"torchrun may restart this job ({environ['TORCHELASTIC_MAX_RESTARTS']} times), over a"
            " store that remembers the attempt before",
            "start the group with RawDDPAdapter, which takes no notice of it; under Lightning,"
            " Fabric or init_process_group set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun",
            "After a restart gloo reads stale addresses: connection refused, or five times the"
            " timeout.",
            ("pytorch/pytorch#135712", "pytorch/pytorch#167288"),
        )


CHECKS = (
    half_a_launch,
    rank_0_of_nothing,
    no_address,
    slurm_without_srun,
    slurm_tasks_for_lightning,
    several_agents_on_a_node,
    restart_that_reads_stale_addresses,
)


def agents(environ: Mapping[str, str]) -> int:
    """Return how many torchruns this job has, as it says itself."""
    return _number(environ, "GROUP_WORLD_SIZE") or 1


def outranked(environ: Mapping[str, str]) -> list[str]:
    """Return the launchers that also say a rank, but are not believed."""
    known, found = dict(environ), []
    while (launch := find_launch(known)) is not None:
        found.append(launch.launcher)
        known = {k: v for k, v in known.items() if k not in variables_of(launch.launcher)}
    return found[1:]


def tasks_per_node(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the (devices, num_nodes) that a Trainer needs to take part in this job."""
    launch = find_launch(environ)
    if launch is None:
        return None
    if launch.one_host:
        local = launch.size
    elif launch.launcher == "Kubeflow":  # a pod is a node, of one process
        local = 1
    else:
        local = _number(environ, "LOCAL_WORLD_SIZE") or _number(environ, "SLURM_NTASKS_PER_NODE")
    return (local, launch.size // local) if local and launch.size % local == 0 else None


def _number(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else 0
