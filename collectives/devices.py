"""Which device a process uses: the accelerator of this machine if it has one, else the CPU."""

from __future__ import annotations

import torch

from .errors import ContextError

__all__ = ["accelerator_kind", "current_device", "pick_device", "set_current_device", "with_index"]


def accelerator_kind() -> str | None:
    """Return the usable kind of accelerator, such as "cuda"; ``None`` on a machine without one."""
    if hasattr(torch, "accelerator"):
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return None if kind is None else kind.type
    return "cuda" if torch.cuda.is_available() else None  # torch < 2.6


def current_device() -> torch.device:
    """Return the current device of the accelerator, or the CPU."""
    return with_index(torch.device(accelerator_kind() or "cpu"))


def with_index(device: torch.device) -> torch.device:
    """Return ``device`` as tensors report it: "cuda" as the current "cuda:0", "cpu:0" as "cpu"."""
    if device.type in ("cpu", "meta"):
        return torch.device(device.type)
    if device != torch.device(device.type):  # has an index
        return device
    current = getattr(torch.get_device_module(device), "current_device", None)  # MPS has one only
    return torch.device(device.type, 0 if current is None else current())


def set_current_device(device: torch.device) -> None:
    """Make ``device`` the current one of its kind, where it is one of several."""
    choose = getattr(torch.get_device_module(device), "set_device", None)
    if device.type != "cpu" and choose is not None:
        choose(device)


def pick_device(local_rank: int | None) -> torch.device:
    """Return the accelerator of the process ``local_rank`` of this host, or the CPU.

    One visible device is taken whatever the local rank: ``srun --gpus-per-task=1`` and
    ``CUDA_VISIBLE_DEVICES`` show each process its own as number 0.

    Args:
        local_rank: Position among the processes of this host; ``None`` if unknown.

    Raises:
        ContextError: Several devices and no local rank, or fewer devices than processes.
    """
    kind = accelerator_kind()
    if kind is None:
        return torch.device("cpu")
    count = torch.get_device_module(kind).device_count()
    if count == 1:
        return torch.device(kind, 0)
    if local_rank is None:
        raise ContextError(
            f"device of this process: expected LOCAL_RANK to choose one of {count} {kind} devices,"
            " got none; set LOCAL_RANK, or give the adapter device="
        )
    if local_rank >= count:
        raise ContextError(
            f"device of this process: expected a local rank below {count}, the number of visible"
            f" {kind} devices, got {local_rank}; start fewer processes per host, or give the"
            ' adapter device="cpu"'
        )
    return torch.device(kind, local_rank)
