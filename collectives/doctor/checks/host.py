"""Memory, files and devices of this host, and the variables of this library."""

from __future__ import annotations

from collections.abc import Iterator

from ...launcher import find_launch
from ...settings import SETTINGS
from ..findings import Finding
from ..snapshot import Snapshot

__all__ = ["CHECKS"]

_LEAST_SHARED = 2**30  # bytes
_LEAST_FILES = 1024
_LEAST_LOCKED = 2**26


def little_shared_memory(found: Snapshot) -> Iterator[Finding]:
    """Containers get 64 MiB by default; DataLoader workers and NCCL need more."""
    if found.shared_memory is None:
        return
    free, total = found.shared_memory
    if total < _LEAST_SHARED or free < _LEAST_SHARED // 8:
        yield Finding(
            "warning",
            f"/dev/shm has {free / 2**20:,.0f} MiB free of {total / 2**20:,.0f} MiB",
            "start the container with --ipc=host or --shm-size=8g (Kubernetes: mount an emptyDir"
            " with medium: Memory there); or remove what ended jobs have left in it",
            "DataLoader workers die with a bus error, and NCCL with an unhandled system error.",
            ("pytorch/pytorch#5040",),
        )


def few_open_files(found: Snapshot) -> Iterator[Finding]:
    """Every peer and every tensor of a DataLoader worker takes a file."""
    launch = find_launch(found.environ)
    needed = max(_LEAST_FILES, 256 + 4 * (launch.size if launch is not None else 1))
    if found.open_files is not None and found.open_files < needed:
        yield Finding(
            "warning",
            f"this process may have {found.open_files} open files",
            f"run `ulimit -n {max(needed, 65536)}` before, or raise LimitNOFILE / --ulimit nofile",
            "Every gloo group takes a file for each rank and more, every tensor from a DataLoader"
            " worker one: Too many open files, or received 0 items of ancdata.",
            ("pytorch/pytorch#973",),
        )


def little_locked_memory(found: Snapshot) -> Iterator[Finding]:
    """InfiniBand needs pages that stay in memory."""
    limit = found.locked_memory
    if found.infiniband and found.torch.accelerator and limit is not None and limit < _LEAST_LOCKED:
        yield Finding(
            "warning",
            f"this host has InfiniBand, but only {limit / 2**20:.0f} MiB of memory may be locked",
            "run `ulimit -l unlimited` before, or --ulimit memlock=-1 for a container",
            "NCCL says: Call to ibv_reg_mr failed, or ibv_create_cq failed.",
        )


def fewer_devices_than_processes(found: Snapshot) -> Iterator[Finding]:
    """More processes on this host than devices that each of them sees."""
    launch = find_launch(found.environ)
    devices = len(found.torch.devices)
    if launch is None or launch.local_rank is None or devices < 2:
        return
    if launch.local_rank >= devices:
        yield Finding(
            "problem",
            f"local rank {launch.local_rank} has no device: this process sees {devices}"
            f" {found.torch.accelerator} devices",
            "start at most as many processes per host as it has devices, or correct"
            " CUDA_VISIBLE_DEVICES",
            "torch says: CUDA error: invalid device ordinal.",
            ("tatsu-lab/stanford_alpaca#67",),
            topic="device-ordinal",
        )


def unusable_folder(found: Snapshot) -> Iterator[Finding]:
    """Ranks of one host that have no address meet by a file in a private folder."""
    if found.folder:
        yield Finding(
            "problem",
            f"the folder in which ranks of this host meet cannot be used: {found.folder}",
            "remove what is there, or set TMPDIR to a folder of your own, the same on all ranks",
        )


def unknown_variables(found: Snapshot) -> Iterator[Finding]:
    """A variable of this library with a wrong name, which nobody else complains of."""
    for name in sorted(found.environ):
        if name.startswith("COLLECTIVES_") and name not in SETTINGS:
            yield Finding(
                "warning",
                f"{name} is no variable of this library",
                f"correct the name: there are {', '.join(sorted(SETTINGS))}",
            )


def refused_settings(found: Snapshot) -> Iterator[Finding]:
    """A variable of this library says nothing sensible: no Exchange can be bound."""
    for error in found.settings:
        title, _, remedy = error.rpartition("; ")
        yield Finding(
            "problem",
            title,
            remedy,
            "The first exchange of every rank that has it so raises an ArgumentError.",
            topic="setting",
        )


CHECKS = (
    little_shared_memory,
    few_open_files,
    little_locked_memory,
    fewer_devices_than_processes,
    unusable_folder,
    unknown_variables,
    refused_settings,
)
