"""The engine behind functions that know a group and no Exchange: one for each group and device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import runtime
from ..binding import Binding, bind_exchange
from ..deadline import Deadline
from ..errors import ArgumentError
from ..topology import Graph

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

__all__ = ["binding_of", "member", "members"]

TIMEOUT = 300.0  # seconds, as an Exchange's

_bindings: dict[tuple[ProcessGroup | None, torch.device], Binding] = {}


def binding_of(device: torch.device, group: ProcessGroup | None) -> Binding:
    """Return the binding for tensors on ``device`` over a group (default: the default group)."""
    group = runtime.default_group() if group is None else group
    key = (group, device)
    binding = _bindings.get(key)
    if binding is None or not binding.valid():
        # A binding keeps its group alive, so those of destroyed groups must not stay.
        for old in [old for old, known in _bindings.items() if not known.valid()]:
            del _bindings[old]
        context = runtime.bind_group(group, device, source="compat")
        binding = _bindings[key] = bind_exchange(
            context,
            lambda size: Graph(size, ()),
            name="compat",
            verify="auto",
            deadline=Deadline(TIMEOUT),
            last_size=None,
        )
    return binding


def members(group: ProcessGroup | None) -> tuple[int, ...]:
    """Return the global ranks of a group, in its own order."""
    return (0,) if group is None else runtime.group_ranks(group)


def member(binding: Binding, operation: str, rank: int) -> int:
    """Translate a global rank into a rank of the group.

    Raises:
        ArgumentError: It is not in the group.
    """
    known = members(binding.context.group)
    if rank not in known:
        shown = ", ".join(map(str, known[:16])) + (", ..." if len(known) > 16 else "")
        raise ArgumentError(
            f"{operation}: expected a global rank of the group ({shown}), got {rank}"
            f" {binding.here}; on a ring of n: (rank - 1) % n and (rank + 1) % n"
        )
    return known.index(rank)
