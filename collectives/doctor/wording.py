"""A snapshot in words: what the screen and the JSON show of it, section by section."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..launcher import find_launch, has_agent_store, may_restart, restart_count, variables_of
from ..record.words import seconds_in_words
from ..rendezvous import slurm_address
from .checks.launch import outranked, tasks_per_node
from .checks.network import gloo_choice
from .rank import Trial
from .selftest import PairTest
from .snapshot import Lookup, Snapshot

__all__ = ["Section", "duration", "rank_facts", "sections", "selftest_section", "speed"]

_RELEVANT = ("NCCL_", "GLOO_", "COLLECTIVES_", "TORCH_NCCL_", "TORCH_DISTRIBUTED", "TORCH_DISABLE_",
             "TORCH_GLOO", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_", "RES_OPTIONS",
             "USE_LIBUV", "UCX_", "FI_", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
             "PET_", "TMPDIR")  # fmt: skip
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_NTASKS")
_LONGEST_VALUE = 120
_PORT = {"not tried": "", "answers": "somebody listens", "silent": "nobody listens yet"}


class Section(NamedTuple):
    """One part of the screen.

    Args:
        title: Of it.
        rows: Labels and what is said of them.
    """

    title: str
    rows: Sequence[tuple[str, str]]


def sections(found: Snapshot) -> list[Section]:
    """Return all that a process found, in words."""
    made = (
        Section("Software", _software(found)),
        Section("Devices", _devices(found)),
        Section("Launch", _launch(found)),
        Section("Network", _network(found)),
        Section("Host", _host(found)),
        Section("Variables", _variables(found.environ)),
    )
    return [section for section in made if section.rows]


def rank_facts(found: Snapshot) -> dict[str, str]:
    """Return what rank 0 needs to know of a rank, for its table and to compare."""
    launch = find_launch(found.environ)
    devices, local = found.torch.devices, launch.local_rank if launch is not None else None
    node = launch.node_rank if launch is not None else 0
    index = 0 if len(devices) == 1 or local is None else local
    kind = found.torch.accelerator
    visible = found.environ.get("CUDA_VISIBLE_DEVICES", "")
    at = visible.split(",")[index] if kind and index < len(visible.split(",")) else str(index)
    return {
        "host": found.host,
        "pid": str(os.getpid()),
        "size": str(launch.size if launch is not None else 1),
        "local rank": "" if local is None else str(local),
        "device": kind or "cpu",
        "device name": devices[index] if index < len(devices) else "",
        "device id": f"{found.host}/{node}:{at or index}" if kind and index < len(devices) else "",
        "interface": gloo_choice(found)[0],
        "torch": found.torch.version,
        "torch-collectives": found.packages.get("torch-collectives", ""),
        "python": found.python,
    }


def selftest_section(test: PairTest) -> Section:
    """Return how the self-test went; only what is known where it failed."""
    trial, rows = test.trial, []
    if test.started:
        joined = "" if trial.error else f", {duration(trial.joined)} to join"
        rows.append(("start", f"{duration(test.started)} for Python and torch{joined}"))
    if trial.error:
        rows.append(("result", "failed: see above"))
    else:
        rows += [("values", "right, forward and backward"), ("speed", speed(trial))]
    return Section("Self-test: two ranks on this host", rows)


def speed(trial: Trial) -> str:
    """Return the timings of a trial."""
    return (
        f"4 B in {duration(trial.small)}, 1 MiB in {duration(trial.large)}"
        f" ({trial.bandwidth / 1e9:.2g} GB/s)"
    )


def duration(seconds: float) -> str:
    """Return a time span in a unit that fits.

    Example:
        >>> duration(0.000092), duration(0.0042), duration(13)
        ('92 us', '4.2 ms', '13.0 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else seconds_in_words(seconds)


def _software(found: Snapshot) -> list[tuple[str, str]]:
    torch = found.torch
    built = f" for CUDA {torch.cuda}" if torch.cuda else ""
    ours = found.packages.get("torch-collectives", "from a source tree")
    others = [f"{name} {version}" for name, version in found.packages.items()
              if name not in ("torch", "torch-collectives", "numpy")]  # fmt: skip
    return [
        ("torch", f"{torch.version}{built}, with {', '.join(torch.backends) or 'no backend'}"),
        ("torch-collectives", ours),
        ("python", f"{found.python}, {found.platform}"),
        *([("also installed", ", ".join(others))] if others else []),
    ]


def _devices(found: Snapshot) -> list[tuple[str, str]]:
    torch = found.torch
    rows = [("processor", f"{found.cores} core{'s' if found.cores != 1 else ''} for this process")]
    if found.load >= found.host_cores + 1:
        wanted = f"{found.load:.0f} processes want to run on {found.host_cores}"
        rows.append(("host is busy", f"{wanted}: all that is timed here takes longer"))
    if torch.devices:
        rows.append((torch.accelerator, _counted(torch.devices)))
    elif found.gpus:
        rows.append(("GPUs", f"{_counted(found.gpus)}, none usable by torch"))
    else:
        rows.append(("accelerator", "none: exchanges are between CPU tensors"))
    if found.links:
        said = ", ".join(f"{count} x {link}" for link, count in found.links.items())
        rows.append(("links", f"{said} (pairs of GPUs, nvidia-smi topo -m)"))
    return rows


def _counted(names: Sequence[str]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{count} x {name}" for name, count in kinds.items())


def _launch(found: Snapshot) -> list[tuple[str, str]]:
    environ = found.environ
    launch = find_launch(environ)
    if launch is None:
        rows = [("process", "alone: no launcher set a rank (exchanges are local copies)")]
        return [*rows, *_meeting(found)] if found.master or found.port else rows
    local = "" if launch.local_rank is None else f", local rank {launch.local_rank}"
    said = [f"{n}={environ[n]}" for n in variables_of(launch.launcher) if n in environ]
    rows = [
        ("process", f"rank {launch.rank} of {launch.size}{local}, node {launch.node_rank}"),
        ("decided by", f"{launch.launcher}: {' '.join(said)}"),
    ]
    if others := outranked(environ):
        rows.append(("not heeded", f"{', '.join(others)}, which also say a rank"))
    rows += _meeting(found)
    if (tasks := tasks_per_node(environ)) is not None:
        rows.append(("in Lightning", f"Trainer(devices={tasks[0]}, num_nodes={tasks[1]})"))
    if may_restart(environ):
        attempt, most = restart_count(environ), environ["TORCHELASTIC_MAX_RESTARTS"]
        rows.append(("restarts", f"{attempt} of at most {most}"))
    return rows


def _meeting(found: Snapshot) -> list[tuple[str, str]]:
    environ = found.environ
    launch = find_launch(environ)
    if found.master is not None and found.port is not None:
        to = ", ".join(found.master.addresses) or "no address"
        state = _PORT.get(found.port.state, found.port.state) if found.master.addresses else ""
        if has_agent_store(environ):
            state = "torchrun holds the store"
        same = to == found.master.name
        where = f"{found.master.name}:{found.port.number}" + ("" if same else f" ({to})")
        return [("meets at", where + (f": {state}" if state else ""))]
    if launch is None or launch.size == 1:
        return []
    if launch.one_host:
        return [("meets at", "a port that rank 0 tells the others on this host")]
    address = slurm_address(environ) if launch.launcher == "srun" else None
    return [("meets at", f"{address[0]}:{address[1]}, from Slurm's variables" if address else "?")]


def _network(found: Snapshot) -> list[tuple[str, str]]:
    usable = [one for one in found.interfaces if one.up and one.addresses]
    chosen, why = gloo_choice(found)
    return [
        ("host name", _looked_up(found.name)),
        ("interfaces", ", ".join(f"{one.name} {one.addresses[0]}" for one in usable) or "unknown"),
        ("gloo uses", f"{chosen} ({why})"),
        ("on one host", _on_one_host(found)),
    ]


def _on_one_host(found: Snapshot) -> str:
    if found.environ.get("COLLECTIVES_SAME_HOST") == "off":
        return "gloo too: COLLECTIVES_SAME_HOST=off"
    if not found.has_doors:
        return "gloo too: this system has no Unix sockets or memory to share"
    return "CPU tensors go through Unix sockets and shared memory, not gloo"


def _looked_up(name: Lookup) -> str:
    if not name.addresses:
        return f"{name.name} does not resolve: {name.error} (in {duration(name.seconds)})"
    back = f", and that to {name.back} in {duration(name.back_seconds)}" if name.back else ""
    return f"{name.name} resolves to {name.addresses[0]} in {duration(name.seconds)}{back}"


def _host(found: Snapshot) -> list[tuple[str, str]]:
    rows = []
    if found.shared_memory is not None:
        free, total = (f"{part / 2**30:.1f} GiB" for part in found.shared_memory)
        rows.append(("/dev/shm", f"{free} free of {total}"))
    limit = "unlimited" if found.open_files is None else str(found.open_files)
    return [*rows, ("open files", f"{limit} (ulimit -n)")]


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 4] + " ...")
        for name, value in sorted(environ.items())
        if name.startswith(_RELEVANT) or (name in _RANKS and find_launch(environ) is None)
    ]
