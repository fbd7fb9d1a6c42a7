"""Ranks without processes: a whole world in one thread's time.

What runs here needs no GPU, no launcher and no process group, so it runs in a notebook; and what
goes wrong is said exactly, where real ranks would only hang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from ..context import Context
from ..errors import ArgumentError
from ..transport.simulator import SimulatedTransport, Traffic, World

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")

__all__ = ["SimulatedAdapter", "Simulation", "Traffic", "simulate"]

T = TypeVar("T")


@dataclass(frozen=True)
class SimulatedAdapter:
    """Finds the context of one simulated rank: the adapter to give to an Exchange."""

    transport: SimulatedTransport

    @property
    def rank(self) -> int:
        """Rank in the simulated world."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Ranks of the simulated world."""
        return self.transport.size

    def context(self) -> Context:
        """Return where this rank stands: all ranks are on one host, on the CPU."""
        return Context(
            rank=self.rank,
            size=self.size,
            local_rank=self.rank,
            node_rank=0,
            device=torch.device("cpu"),
            group=None,
            source="simulation",
            transport=self.transport,
        )


class Simulation:
    """A world of ranks in this process.

    Each rank is a thread, and exactly one runs at a time: until it waits for a message. A send is
    done when its receive has been posted, as on gloo and NCCL, and reads the tensor then.

    Failures are exact and without a timeout. Where no rank can go on, or the two ends of a message
    do not fit, :class:`~collectives.errors.ExchangeMismatch` is raised *in every rank*, where it
    waits or communicates next; it closes the world, so that each later message raises it again.
    The rule for :meth:`run` is that of any function: it raises what first left a rank's function,
    and a failure that every rank it reached has handled is handled. If a rank fails in another way
    the others are ended where they wait. No thread outlives :meth:`run`, also after Ctrl-C.

    Shared by all ranks, as they are one process: torch's global random generator (give each rank a
    ``torch.Generator``), the default dtype, environment, modules' globals, and the forward-mode AD
    level (enter it around the simulation). Each rank starts with the caller's grad mode; other
    modes of the calling thread (autocast, default device) are to be entered inside the function.
    Intra-op threads are divided among the ranks. Ranks may wait for each other by messages only:
    one that waits for a lock, or a thread of its own that sends, breaks the turns.

    Args:
        world_size: Number of ranks; 1,024 are no problem.
        seed: Of a random order of the ranks, the same for the same seed, in which they also
            overtake each other between messages. None: they take turns.
        buffered: Sends are copied and done at once. Programs that need this deadlock elsewhere.
        tags: Whether messages match by tag, as on gloo. Without, messages between two ranks match
            by order alone and are posted in batches, as on NCCL.

    Raises:
        ArgumentError: ``world_size`` is not positive.

    Example:
        >>> simulation = Simulation(3, seed=7)
        >>> simulation.run(lambda adapter: adapter.rank ** 2)
        [0, 1, 4]
        >>> simulation.traffic
        {}
    """

    def __init__(
        self,
        world_size: int,
        *,
        seed: int | None = None,
        buffered: bool = False,
        tags: bool = True,
    ) -> None:
        if not _is_count(world_size):
            raise ArgumentError(
                f"simulate: expected at least 1 rank, got {world_size!r}; simulate(4, program)"
            )
        self._world_size = world_size
        self._seed = seed
        self._buffered = buffered
        self._tags = tags
        self._traffic: Mapping[tuple[int, int], Traffic] = {}

    @property
    def traffic(self) -> Mapping[tuple[int, int], Traffic]:
        """What the ranks received in the last run, by (source, destination)."""
        return self._traffic

    def run(self, fn: Callable[[SimulatedAdapter, Unpack[Ts]], T], *args: Unpack[Ts]) -> list[T]:
        """Run ``fn(adapter, *args)`` on every rank, in a new world.

        Args:
            fn: A rank's program. All ranks get the same ``args``, not copies.
            args: Passed on.

        Returns:
            What ``fn`` returned, by rank.

        Raises:
            ExchangeMismatch: Ranks wait for each other for ever, the ends of a message do not fit,
                or messages are left over; the text says which ranks and exchanges differ, and how.
            BaseException: What first left ``fn`` on any rank, with a note that names the rank.
        """
        world = World(self._world_size, seed=self._seed, buffered=self._buffered, tags=self._tags)
        try:
            return world.run(lambda transport: fn(SimulatedAdapter(transport), *args))
        finally:
            self._traffic = world.traffic


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def simulate(
    world_size: int,
    fn: Callable[[SimulatedAdapter, Unpack[Ts]], T],
    *args: Unpack[Ts],
    seed: int | None = None,
    buffered: bool = False,
) -> list[T]:
    """Run ``fn(adapter, *args)`` on ``world_size`` ranks in this process.

    Called by: anyone; needs no process group. See :class:`Simulation` for the rules.

    Args:
        world_size: Number of ranks.
        fn: A rank's program; ``adapter`` goes into its Exchange.
        args: Passed on to ``fn``, the same objects on every rank.
        seed: Of a random order of the ranks; None: they take turns.
        buffered: Sends are done at once.

    Returns:
        What ``fn`` returned, by rank.

    Raises:
        ExchangeMismatch: The ranks wait for each other for ever, or messages do not fit.
        BaseException: What first left ``fn`` on any rank.

    Example:
        >>> simulate(3, lambda adapter, factor: factor * adapter.rank, 10)
        [0, 10, 20]
    """
    return Simulation(world_size, seed=seed, buffered=buffered).run(fn, *args)
