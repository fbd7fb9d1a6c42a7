"""A new process group for ranks that all outlived a failure."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .errors import ContextError, PeerLost
from .guard import Absent
from .transport.control import destroy, make_again, spans_all

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .guard import Guard

__all__ = ["renew_group", "successor"]

# By the group that failed. Exchanges over one group follow each other to the same new one.
_SUCCESSORS: weakref.WeakKeyDictionary[ProcessGroup, ProcessGroup] = weakref.WeakKeyDictionary()
_MADE: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def successor(group: ProcessGroup) -> ProcessGroup:
    """Return the group that took the place of this one, or this one."""
    while (newer := _SUCCESSORS.get(group)) is not None:
        group = newer
    return group


def renew_group(group: ProcessGroup, guard: Guard | None, timeout: float, here: str) -> None:
    """Make a group of the same ranks and let it take the place of ``group``.

    Args:
        group: That failed.
        guard: Of it, through which the ranks meet first: ``new_group`` alone would wait for five
            times its timeout for a rank that is gone, and name none.
        timeout: Seconds to wait for all ranks.
        here: For error texts.

    Raises:
        PeerLost: Not all ranks came, or one cannot come any more; the text names it.
        ContextError: torch could not make the group.
    """
    absent = Absent([]) if guard is None else guard.gather(timeout)
    if absent.ranks or absent.gone:
        who = f"rank {', '.join(map(str, absent.ranks))} did not come"
        raise PeerLost(
            f"renew: expected all ranks within {timeout:g} s, but {absent.gone or who} {here};"
            " where a process has ended, start all again from the last checkpoint (torchrun"
            " --max-restarts does)"
        )
    try:
        newer = make_again(group, timeout)
    except RuntimeError as error:
        raise ContextError(
            f"renew: torch could not make a new process group {here}: {error}; start all ranks"
            " again from the last checkpoint"
        ) from error
    for older, follower in list(_SUCCESSORS.items()):
        if follower is group:
            _SUCCESSORS[older] = newer
    _SUCCESSORS[group] = newer
    # One of ours goes; but not if only its members made it: torch would name the next one alike.
    if group in _MADE and spans_all(group):
        destroy(group)
    _MADE.add(newer)
