"""Where a process stands, checked against ``torch.distributed``; and how long its group lives.

Every adapter ends in :func:`bind`. Its checks turn what would be silent (N processes that each run
alone, a group of another size, a worker process that talks over its parent's sockets) into a
sentence that says what to do. Process groups are looked up late and never kept by anything that
can be copied.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from .context import Context
from .devices import current_device, with_index
from .errors import ContextError
from .launcher import Launch, find_launch, find_place, unused_torchrun

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.distributed import ProcessGroup

__all__ = [
    "bind",
    "bind_group",
    "default_group",
    "group_alive",
    "group_device",
    "group_ranks",
    "is_group",
    "is_initialized",
    "live_groups",
    "member_groups",
    "refuse_data_worker",
    "store_host",
]

# Groups that this process has from its parent by fork: their sockets belong to the parent.
_inherited: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def is_initialized() -> bool:
    """Return whether this process has a default process group."""
    return dist.is_available() and dist.is_initialized()


def default_group() -> ProcessGroup | None:
    """Return the default process group, looked up anew; ``None`` before init and after destroy."""
    return dist.group.WORLD if is_initialized() else None


def live_groups() -> Collection[ProcessGroup]:
    """Return torch's own table of groups: one that was destroyed is not in it any more."""
    groups: Collection[ProcessGroup] = dist.distributed_c10d._world.pg_map
    return groups


def member_groups() -> list[ProcessGroup]:
    """Return the groups that this process has made and not destroyed, and is a rank of."""
    return [group for group in list(live_groups()) if is_group(group) and group_alive(group)]


def group_alive(group: ProcessGroup) -> bool:
    """Return whether ``group`` still exists and was made by this process."""
    return group in live_groups() and not (_inherited and group in _inherited)


def bind(
    *,
    rank: int,
    size: int,
    local_rank: int,
    node_rank: int,
    device: torch.device,
    source: str,
    hint: str,
    group: ProcessGroup | None = None,
    alone: bool = False,
) -> Context:
    """Check what a runtime says about this process, and return it as a :class:`Context`.

    Args:
        rank: Of this process among all processes, as the runtime says.
        size: Number of processes, as the runtime says.
        local_rank: Position on this host.
        node_rank: Number of this host.
        device: Where exchanged tensors live; given an index where its kind has indices.
        source: What says so, for error texts: "Trainer", "Fabric", "script".
        hint: When to ask instead, and what to set: the remedy of the error texts.
        group: Exchange over this group instead of the default one; rank and size become its own.
        alone: Exchange with nobody, on purpose: every exchange is a local copy.

    Returns:
        The context; its group is ``None`` only where this process is alone.

    Raises:
        ContextError: There is no group for several processes; the launcher started several
            processes and the runtime runs each alone; the runtime and ``torch.distributed``
            disagree; this process is not a member of ``group``; ``group`` is gone or was made
            before a fork; this is a worker process of a DataLoader; ``alone`` where the runtime
            runs several processes.
    """
    refuse_data_worker(source)
    where = f"(rank {rank} of {size})"
    found = Context(
        rank, size, local_rank, node_rank, with_index(device), group, source, alone=alone
    )
    if alone:
        if size > 1:
            raise ContextError(
                f"alone=True: expected a {source} of one process, got {size} {where}; drop"
                " alone=True, or use RawDDPAdapter(alone=True) for work of one rank by itself"
            )
        return found
    if group is not None:
        members = _members(group, where)
        return replace(found, rank=members.index(dist.get_rank()), size=len(members))
    default = default_group()
    if default is None:
        _check_alone(size, source, hint, where)
        return found
    _check_not_inherited(default, where)
    if (rank, size) != (dist.get_rank(), dist.get_world_size()):
        raise ContextError(
            f"the {source} and torch.distributed disagree: the {source} says rank {rank} of {size},"
            f" torch.distributed says rank {dist.get_rank()} of {dist.get_world_size()}; {hint}, or"
            " give the adapter group=torch.distributed.group.WORLD to exchange over the latter, or"
            " alone=True to exchange with nobody"
        )
    return replace(found, group=default)


def bind_group(
    group: ProcessGroup | None,
    device: torch.device | None,
    *,
    source: str,
    hint: str = "call torch.distributed.init_process_group() before",
    claim: Launch | None = None,
    alone: bool = False,
) -> Context:
    """Bind to what ``torch.distributed`` itself says, where no runtime knows better.

    Without a default group this process is alone: callers for which that would be a mistake
    raise before.

    Args:
        group: Exchange over this group; ``None``: over the default one.
        device: Where tensors live; ``None``: where the default group says.
        source: For error texts.
        hint: For error texts.
        claim: What the caller says to be, which must then be true.
        alone: Exchange with nobody, on purpose.

    Raises:
        ContextError: See :func:`bind`.
    """
    default = None if alone else default_group()
    rank, size = (0, 1) if default is None else (default.rank(), default.size())
    if claim is not None and not alone:
        rank, size = claim.rank, claim.size
    local_rank, node_rank = find_place(os.environ, rank, size)
    return bind(
        rank=rank,
        size=size,
        local_rank=local_rank,
        node_rank=node_rank,
        device=group_device(default) if device is None else device,
        source=source,
        hint=hint,
        group=group,
        alone=alone,
    )


def refuse_data_worker(source: str) -> None:
    """Raise in a worker process of a DataLoader, forked or spawned.

    A forked worker has its parent's sockets and would answer in its place; a spawned one has none
    and would exchange with itself.

    Raises:
        ContextError: This is such a process.
    """
    worker = torch.utils.data.get_worker_info()
    if worker is not None:
        raise ContextError(
            f"exchange in a DataLoader worker: expected a process that the {source} started, got"
            f" worker {worker.id} of {worker.num_workers}; exchange in the training process, or use"
            " num_workers=0"
        )


def is_group(candidate: object) -> bool:
    """Return whether ``torch.distributed`` made this: a group, or its mark for "not a member"."""
    if not dist.is_available():
        return False
    return (
        isinstance(candidate, dist.ProcessGroup) or candidate == dist.GroupMember.NON_GROUP_MEMBER
    )


def group_ranks(group: object) -> tuple[int, ...]:
    """Return the global ranks of ``group`` in its own order; () when it is gone or not ours."""
    if not isinstance(group, dist.ProcessGroup) or not group_alive(group):
        return ()  # new_group() hands a number to ranks that are not members
    return tuple(dist.get_process_group_ranks(group))


def store_host(group: ProcessGroup) -> int:
    """Return which rank of the group mostly holds the rendezvous store; -1: none of them."""
    ranks = group_ranks(group)
    return ranks.index(0) if 0 in ranks else -1


def group_device(group: ProcessGroup | None) -> torch.device:
    """Return where tensors of ``group`` live when nobody says so.

    That is the device that the group was bound to (``device_id=``), the CPU for a gloo or MPI
    group, else the current accelerator.
    """
    if group is not None:
        if group.bound_device_id is not None:
            return group.bound_device_id
        if dist.get_backend(group) in ("gloo", "mpi"):
            return torch.device("cpu")
    return current_device()


def _check_alone(size: int, source: str, hint: str, where: str) -> None:
    """Raise unless a process without any group may exchange with itself."""
    if size > 1:
        raise ContextError(
            f"no process group: the {source} runs {size} processes, but torch.distributed is not"
            f" initialised in this one {where}; {hint}"
        )
    launch = find_launch(os.environ)
    if launch is not None and launch.size > 1:
        raise ContextError(
            f"no process group: {launch.launcher} started {launch.size} processes, but the {source}"
            f" runs each of them alone, so that nothing would be exchanged (rank {launch.rank} of"
            f" {launch.size}); {hint}, or give the adapter alone=True for work of one process by"
            " itself"
        )
    untaken = unused_torchrun(os.environ)
    if untaken:
        raise ContextError(
            f"no process group: {untaken}, so that the {source} runs alone in each pod and nothing"
            " would be exchanged; start the script with torchrun, or give the adapter alone=True"
            f" for work of one process by itself {where}"
        )


def _members(group: object, where: str) -> tuple[int, ...]:
    """Return the global ranks of a group that was given as ``group=``."""
    if not isinstance(group, dist.ProcessGroup):
        raise ContextError(
            f"group=: this process is not a member of the given group {where}; only its members"
            " exchange over it"
        )
    _check_not_inherited(group, where)
    members = group_ranks(group)
    if not members:
        raise ContextError(
            f"group=: the given group does not exist any more {where}: destroy_process_group() was"
            " called; make a new group and a new adapter"
        )
    if dist.get_rank() not in members:
        raise ContextError(
            f"group=: this process is not a member of the given group of ranks {list(members)}"
            f" {where}; only its members exchange over it"
        )
    return members


def _check_not_inherited(group: ProcessGroup, where: str) -> None:
    if group in _inherited:
        raise ContextError(
            f"exchange in a forked process {where}: its process group belongs to the parent, and"
            " so do the sockets; exchange in the parent, or start processes before the group is"
            " made and let each join it"
        )


def _remember_inherited() -> None:
    if dist.is_available():
        _inherited.update(dist.distributed_c10d._world.pg_map)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_inherited)
