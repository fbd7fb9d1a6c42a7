"""Opening the store of a job, when what listens at its address may be anything."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from ..errors import ContextError
from ..launcher import Launch, has_agent_store
from ..transport.bulletin import Bulletin, bulletin
from ..transport.stopwatch import TimeIsUpError, call_bounded
from .network import probe_port

__all__ = ["PATIENCE", "open_bulletin"]

PATIENCE = 6.0  # seconds for a listener to answer as a store: one of this job does at once
_GRACE = 2.0  # after all bounds of the opening itself, which says more


def open_bulletin(launch: Launch, seconds: float, patience: float, stack: ExitStack) -> Bulletin:
    """Return the place for the notes of all ranks; it is closed with ``stack``.

    torch's client of a store waits for an answer without end, and nothing ends its call; so it is
    left behind in a thread of its own.

    Args:
        launch: Which process this is.
        seconds: How long to wait for rank 0.
        patience: Seconds after which a listener that says nothing is no store of this job.
        stack: Of the caller.

    Raises:
        ContextError: Nobody says where rank 0 is, it is not there, or another program is.
    """
    opened = bulletin(launch, seconds)
    doubt = _Doubt(patience) if launch.rank and not has_agent_store(os.environ) else None
    try:
        board = call_bounded(
            opened.__enter__, seconds + _GRACE, None if doubt is None else doubt.look
        )
    except TimeIsUpError:
        raise ContextError(
            f"expected the store of rank 0 within {seconds:g} s, got nothing; see the output of"
            " rank 0, and check that MASTER_ADDR and MASTER_PORT are those of rank 0"
        ) from None
    stack.push(opened)
    return board


class _Doubt:
    """Grows while somebody listens at the address of the job, but is no store.

    It asks only twice: a real store may look up the name of whoever connects, which takes time.

    Args:
        patience: In seconds.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._asked = time.monotonic()
        self._heard = False

    def look(self) -> None:
        """Raise where somebody has listened for long without having become a store."""
        if time.monotonic() - self._asked < self._patience / 2:
            return
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        self._asked = time.monotonic()
        heard = bool(host and port) and probe_port(str(port), host).state == "answers"
        if heard and self._heard:
            raise ContextError(
                f"expected the store of rank 0 at {host}:{port} (MASTER_ADDR, MASTER_PORT), got"
                " another program: it takes connections and says nothing in"
                f" {self._patience:.0f} s; end what listens there (`ss -ltnp 'sport = :{port}'` on"
                " that host names it), or choose another port"
            )
        self._heard = heard
