"""What is remembered of an exchange when it is over: the last of them on a group, in order.

The watchdog tells the others what this rank has posted, and the flight record writes it down. A
trace holds neither tensors nor anything of the group, or a destroyed group could never be freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .call import Call
    from .signature import Signature

__all__ = ["KEPT", "Trace"]

KEPT = 64  # exchanges per group


class Trace:
    """One exchange, forward or backward, from the moment that its messages are posted.

    Args:
        call: Its messages.
        sequence: Number on its group; a backward has its forward's.
        step: As told by ``mark_step``.
        begun: By ``time.monotonic()``.

    ``ended`` is when everything had been moved, 0.0 before.
    """

    __slots__ = ("begun", "call", "ended", "sequence", "step")

    def __init__(self, call: Call, sequence: int, step: tuple[int, ...], begun: float) -> None:
        self.call, self.sequence, self.step, self.begun = call, sequence, step, begun
        self.ended = 0.0

    def signature(self, where: str = "") -> Signature:
        """Return what the other ranks' exchange of this number must agree with."""
        return self.call.signature(self.sequence, self.step, where)
