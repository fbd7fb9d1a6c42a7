"""What a rank tells the others of all its groups when it leaves them, and what it knows then."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..runtime import member_groups
from ..transport.stopwatch import TimeIsUpError, call_bounded
from .attach import decline_for, has_met
from .guard import describe
from .watchdog import guards

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["known_cause", "leave_all", "tell_all"]

_NOTES = 1.0  # seconds that notes to groups that have not met may take


def tell_all(error: BaseException) -> None:
    """Fail the exchanges of all groups of this process, on all ranks, because of an error here.

    Where the error is that of an exchange, they know: the first cause stays. Ranks that wait for
    the first exchange of a group are told as well.
    """
    for guard in guards():
        guard.raised(error)
    _stay_away(f"raised {describe(error)}")


def leave_all(why: str) -> None:
    """Tell all ranks of all groups of this process that it exchanges no more."""
    for guard in guards():
        guard.leave(f"{why} after {guard.state.sequence} exchanges")
    _stay_away(f"{why}, and has exchanged nothing")


def known_cause() -> str:
    """Return why a group of this process failed, as far as it is known; mostly empty."""
    for guard in guards():
        cause = guard.cause(0.3)
        if cause is not None:
            return f"{cause.text} [reported by rank {cause.rank}]"
    return ""


def _stay_away(why: str) -> None:
    """Leave a note in each group whose ranks have not met; mostly nobody reads it."""
    groups = [group for group in member_groups() if group.size() > 1 and not has_met(group)]
    if groups:
        with suppress(TimeIsUpError, RuntimeError):  # the store has ended: nobody to tell
            call_bounded(lambda: _decline(groups, why), _NOTES)


def _decline(groups: list[ProcessGroup], why: str) -> None:
    for group in groups:
        decline_for(group, f"rank {group.rank()} {why}")
