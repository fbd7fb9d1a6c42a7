"""Many ranks in one process, without time: threads that run one at a time, messages in memory.

Messages behave as on gloo and NCCL: a send is done when its receive has been posted, not before,
and its bytes are read then. Since there is no time there is no timeout: a wait that cannot end is
seen at once, exactly, and said in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch

from ..errors import ExchangeClosed, ExchangeMismatch
from .baton import Baton, RankEnded
from .diagnosis import Progress, explain_left_over, explain_misfit, explain_stall
from .mailbox import Kind, Mailbox, Message, Traffic

if TYPE_CHECKING:
    from ..signature import Signature
    from . import Post

__all__ = ["SimulatedTransport", "SimulatedWork", "Traffic", "World"]

T = TypeVar("T")


class World:
    """The ranks of one simulated run and the messages between them.

    Args:
        size: Number of ranks.
        seed: Of a random schedule; None: ranks take turns.
        buffered: Sends are copied and done at once, as with MPI's buffered mode.
        tags: Whether messages match by tag; without, by order alone, as on NCCL.
    """

    def __init__(
        self, size: int, *, seed: int | None = None, buffered: bool = False, tags: bool = True
    ) -> None:
        self.size = size
        self.tags = tags
        self._buffered = buffered
        self._baton = Baton(size, seed)
        self._mailbox = Mailbox()
        self._progress = [Progress() for _ in range(size)]
        self._waiting: dict[int, Message] = {}
        self._report: str | None = None
        self._failure: tuple[int, BaseException] | None = None

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self._baton.ended

    @property
    def traffic(self) -> Mapping[tuple[int, int], Traffic]:
        """What arrived so far, by (source, destination)."""
        return self._mailbox.traffic

    def run(self, program: Callable[[SimulatedTransport], T]) -> list[T]:
        """Run ``program`` on every rank, once in the life of a world.

        Returns:
            What it returned, by rank.

        Raises:
            ExchangeMismatch: The ranks wait for each other for ever, or a message was left over.
            BaseException: The first exception that left ``program`` on any rank.
        """
        results: dict[int, T] = {}
        modes = _Modes.of_this_thread(self.size)

        def body(rank: int) -> None:
            try:
                with modes.entered():
                    results[rank] = program(SimulatedTransport(self, rank))
            except RankEnded:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                self._fail(rank, error)
            finally:
                self._progress[rank].ended = True

        try:
            self._baton.run(body, self._stalled)
        finally:
            modes.restore()
        self._check_end()
        return [results[rank] for rank in range(self.size)]

    def announce(self, rank: int, signature: Signature | None) -> None:
        """Note in which exchange ``rank`` is."""
        self._progress[rank].announce(signature)

    def post(self, kind: Kind, rank: int, tensor: torch.Tensor, peer: int, tag: int) -> Message:
        """Post ``rank``'s end of a message; ``peer`` has the other.

        Raises:
            ArgumentError: A peer or tensor that no message can have.
            ExchangeMismatch: The two ends do not fit, or the ranks have parted before.
        """
        self._check_open(rank)
        progress = self._progress[rank]
        message = Message(kind, rank, peer, tag if self.tags else None, tensor, progress.signature)
        message.check(self.size)
        self._baton.pause(rank)
        self._check_open(rank)
        progress.messages += 1
        if self._buffered and kind == "send":
            message.read()
            message.done = True
        other = self._mailbox.match(message)
        if other is not None:
            self._deliver(message, other)
        return message

    def wait(self, message: Message) -> None:
        """Return when ``message`` has been moved.

        Raises:
            ExchangeMismatch: It never will be.
        """
        if message.done:
            return
        self._check_open(message.rank)
        self._waiting[message.rank] = message
        self._baton.sleep(message.rank)
        if not message.done:
            self._check_open(message.rank)

    def _deliver(self, message: Message, other: Message) -> None:
        if not message.fits(other):
            report = explain_misfit(message, other)
            self._break(report)
            raise ExchangeMismatch(report)
        self._mailbox.move(message, other)
        if self._waiting.get(other.rank) is other:
            del self._waiting[other.rank]
            self._baton.wake(other.rank)

    def _fail(self, rank: int, error: BaseException) -> None:
        self._failure = self._failure or (rank, error)
        # After a report every rank meets the report by itself, and must be able to handle it.
        if self._report is None:
            self._baton.stop()

    def _stalled(self) -> None:
        self._break(explain_stall(self._waiting, self._progress, self._mailbox.left_over()))

    def _break(self, report: str) -> None:
        """Make every rank raise ``report``, where it waits now or communicates next."""
        self._report = report
        for rank in sorted(self._waiting):
            self._baton.wake(rank)
        self._waiting.clear()

    def _check_open(self, rank: int) -> None:
        if self._progress[rank].ended:
            raise ExchangeClosed(
                f"simulate: expected messages inside the simulated function only, got one after "
                f"its end (rank {rank} of {self.size}); run exchanges and backward() inside"
            )
        if self.ended:
            raise RankEnded
        if self._report is not None:
            raise ExchangeMismatch(self._report)

    def _check_end(self) -> None:
        if self._failure is not None:
            rank, error = self._failure
            self._failure = None
            _name_rank(error, rank, self.size)
            raise error
        left = list(self._mailbox.left_over())
        if left and self._report is None:
            raise ExchangeMismatch(explain_left_over(left))


class SimulatedTransport:
    """One rank's end of a :class:`World`: a Transport.

    Args:
        world: Whose messages.
        rank: Whose end.
    """

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self._rank = rank

    def __deepcopy__(self, memo: dict[int, object]) -> SimulatedTransport:
        """Return itself: a copied module talks over the same wire, as with a process group."""
        return self

    @property
    def rank(self) -> int:
        """Rank in the world."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return self._world.size

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> SimulatedWork:
        """Start sending the one tensor of ``tensors``."""
        (tensor,) = tensors
        return SimulatedWork(self._world, self._world.post("send", self._rank, tensor, peer, tag))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> SimulatedWork:
        """Start receiving into the one tensor of ``tensors``."""
        (tensor,) = tensors
        return SimulatedWork(self._world, self._world.post("recv", self._rank, tensor, peer, tag))

    @property
    def batch(self) -> Callable[[Sequence[Post]], list[SimulatedWork]] | None:
        """Posts many messages and returns one work for all, where there are no tags."""
        return None if self._world.tags else self._post_all

    def _post_all(self, posts: Sequence[Post]) -> list[SimulatedWork]:
        post = self._world.post
        messages = [post(p.kind, self._rank, p.tensor, p.peer, p.tag) for p in posts]
        return [SimulatedWork(self._world, *messages)]

    def announce(self, signature: Signature | None) -> None:
        """Take note of the exchange whose messages follow."""
        self._world.announce(self._rank, signature)

    label = "simulation"

    def alive(self) -> bool:
        """Whether the simulated run still goes on."""
        return not self._world.ended

    def close(self) -> None:
        """Do nothing: a transport has made nothing of its own."""


class SimulatedWork:
    """Messages on their way; on NCCL too one work stands for a whole batch."""

    def __init__(self, world: World, *messages: Message) -> None:
        self._world = world
        self._messages = messages

    def wait(self, timeout: timedelta | None = None) -> None:
        """Return when the messages have been moved.

        Args:
            timeout: Means nothing here: a wait that cannot end is found without it.

        Raises:
            ExchangeMismatch: They never will be.
        """
        del timeout
        for message in self._messages:
            self._world.wait(message)


@dataclass(frozen=True, slots=True)
class _Modes:
    """What torch keeps for each thread, as it is in the thread that simulates."""

    grad: bool
    inference: bool
    threads: int
    share: int

    @classmethod
    def of_this_thread(cls, size: int) -> _Modes:
        threads = torch.get_num_threads()
        inference = torch.is_inference_mode_enabled()
        return cls(torch.is_grad_enabled(), inference, threads, max(1, threads // size))

    @contextmanager
    def entered(self) -> Iterator[None]:
        # OpenMP keeps a team of threads for every thread that computes: 256 ranks on 64 cores would
        # start 16,000. Together the ranks take as many as their caller would.
        torch.set_num_threads(self.share)
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad):
            yield

    def restore(self) -> None:
        # The number is this thread's own and, for threads that start later, everybody's.
        torch.set_num_threads(self.threads)


def _name_rank(error: BaseException, rank: int, size: int) -> None:
    text = f"left the function of rank {rank} of {size} in the simulator"
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(text)
    elif error.__cause__ is None and error.__context__ is None:
        error.__cause__ = RuntimeError(text)
