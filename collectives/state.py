"""What all Exchanges over one group share on this rank."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from .call import DIGEST_BITS, SEQUENCE_BITS
from .chain import Chain, inside_backward
from .errors import ExchangeError
from .recycling import Recycling
from .trace import KEPT, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .flight import Flight
    from .guard.guard import Guard
    from .hello import Stop
    from .pending import Dropped
    from .transport.same_host import SameHost

__all__ = ["SEQUENCE_MASK", "Counters", "GroupState", "in_numbers", "tag_mix"]

SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
_DIGEST_MASK = (1 << DIGEST_BITS) - 1


@dataclass(slots=True)
class Counters:
    """What one Exchange has moved on this rank, backward included.

    Args:
        exchanges: Forward and backward.
        messages_sent: Of which many tensors may be one.
        bytes_sent: Payload.
        bytes_received: Payload.
        seconds: From posting to arrival.
        waited: Seconds of these that the calling thread stood still.
    """

    exchanges: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    waited: float = 0.0


def in_numbers(counters: Mapping[str, Counters]) -> dict[str, float]:
    """Return what a logger takes: all operations together, then each by its name."""
    totals = {f.name: sum(getattr(c, f.name) for c in counters.values()) for f in fields(Counters)}
    found = _for_logger(Counters(**totals))
    for operation, counted in counters.items():
        found |= {f"{operation}/{name}": value for name, value in _for_logger(counted).items()}
    return found


def _for_logger(counted: Counters) -> dict[str, float]:
    numbers: dict[str, float] = asdict(counted)
    milliseconds = 1000 * numbers.pop("waited")
    return {
        **numbers,
        "bytes": counted.bytes_sent + counted.bytes_received,
        "wait_ms": milliseconds,
    }


class GroupState:
    """What all Exchanges over one group share on this rank.

    It lives as long as the group, not as long as an Exchange: were it tied to Exchanges, garbage
    collection, which no two ranks do at the same time, would set one rank's numbers back.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.chain = Chain()
        self.step: tuple[int, ...] = ()  # marks, and the position in a loop of even_steps
        self.loop: tuple[int, ...] = ()
        self._marks: tuple[int, ...] = ()
        self.step_tag = 0
        self.marked = False  # whether somebody called mark_step, who knows better than the adapter
        self.broken: str | None = None
        self.wreck: Flight | None = None
        self.dropped: list[Dropped] = []
        self.recycling = Recycling()
        self.landing: set[int] = set()  # memory that started exchanges will write to
        self.history: deque[Trace] = deque(maxlen=KEPT)
        self.waiting: Flight | None = None  # read by the watchdog
        self.guard: Guard | None = None
        self.greeting: Stop | None = None  # while this rank waits for the others' first exchange
        self.same_host: SameHost | None = None
        self.run = ""  # what all ranks of the group call it, once they have greeted each other
        self.owners = 0  # Exchanges that have exchanged over it
        self.agreed: dict[int, set[int]] = {}  # with each peer, where only what is new is agreed on
        self.thread = 0  # the one that exchanges
        self._owner: threading.Thread | None = None

    def next_sequence(self) -> int:
        """Number the next exchange."""
        self.sequence += 1
        return self.sequence

    def claim(self, here: str) -> None:
        """Make the calling thread the one that exchanges over this group.

        Two threads would number their exchanges in an order that differs from rank to rank.

        Raises:
            ExchangeError: Another thread has exchanged over it, and lives.
        """
        if inside_backward():
            return  # in a thread of autograd's (CUDA), for which the owner waits
        owner = self._owner
        if owner is not None and owner.is_alive() and owner is not threading.current_thread():
            raise ExchangeError(
                f"exchange in thread {threading.current_thread().name!r}: this group belongs to"
                f" thread {owner.name!r}, which exchanged over it first {here}; two threads would"
                " mix up their messages: exchange in one, or give each a process group of its own"
            )
        self._owner = threading.current_thread()
        self.thread = threading.get_ident()

    def check_backward(self) -> None:
        """Raise what :meth:`Chain.check` finds; nothing where a failure cut the backward off."""
        if self.broken is None:
            self.chain.check()

    def shares_thread(self, other: GroupState) -> bool:
        """Whether one thread exchanges over both groups, so that it waits in one at a time."""
        return self._owner is not None and self._owner is other._owner

    def forget(self) -> None:
        """Let go of all that refers to the group, once it was destroyed.

        The token of the last exchange refers to its graph, and so to the group: nobody else would
        ever let go of it.
        """
        if self.same_host is not None:
            self.same_host.break_off()
        self.chain = Chain()
        self.wreck = self.waiting = self.guard = self.same_host = None
        self.dropped.clear()

    def leave_host(self) -> None:
        """Give back what messages among ranks of this host took; by the thread that exchanges."""
        if self.same_host is not None:
            self.same_host.close()
        self.same_host = None

    def follow(self, numbers: tuple[int, ...]) -> None:
        """Put the step that the runtime says into the signatures, unless somebody marks steps."""
        if numbers != self._marks and not self.marked:
            self.mark_step(numbers)

    def mark_step(self, numbers: tuple[int, ...]) -> None:
        """Put the step into the signatures of what follows."""
        self._marks = numbers
        self.step = numbers + self.loop
        self.step_tag = _step_tag(self.step)

    def enter_loop(self, numbers: tuple[int, ...]) -> None:
        """Put the position in a loop into the signatures: a rank that leaves it alone is found."""
        self.loop = numbers
        self.mark_step(self._marks)


def tag_mix(step: tuple[int, ...], sequence: int) -> int:
    """Return what goes into all tags of an exchange (by XOR)."""
    return _step_tag(step) ^ ((sequence & SEQUENCE_MASK) << 1)


def _step_tag(step: tuple[int, ...]) -> int:
    digest = zlib.crc32(repr(step).encode()) if step else 0
    return (digest & _DIGEST_MASK) << (SEQUENCE_BITS + 1)
