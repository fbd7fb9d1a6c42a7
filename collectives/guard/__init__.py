"""Never silently wrong, never a hang without an end: what watches over the exchanges of a group.

On gloo the signature of an exchange is part of its messages' tags, so a wrong message cannot match
and every mistake becomes a wait. A watchdog thread looks into waits that last (``watchdog``); ranks
tell each other through the rendezvous store where they stand (``board``, ``account``); what is
proven (``judge``) is told to all ranks, and breaks their waits. Nothing of it is on the way of an
exchange that succeeds.
"""

from .account import Cause
from .attach import attach, stay_away, stay_unwatched
from .guard import Guard, describe
from .parting import known_cause, leave_all, tell_all
from .rollcall import Absent
from .watchdog import watchdog

__all__ = [
    "Absent",
    "Cause",
    "Guard",
    "attach",
    "describe",
    "known_cause",
    "leave_all",
    "stay_away",
    "stay_unwatched",
    "tell_all",
    "watchdog",
]
