"""Who sends what to whom, as data: no torch, no communication.

The unit is a **lane**, not a neighbour: one tree on its way, with the rank that gets mine, the
rank that I get mine from, and a key that is the same number on both ends. So a ring of two
(left == right) and a ring of one (both are myself) are ordinary cases, and one ``reverse()``
gives the backward of every operation.

The plans of all ranks can be compared in one process, before any rank is started::

    check_plans([plan_shift(Ring(4), rank, 0, 1) for rank in range(4)])

That is how the swap of the two sides on a ring of two is found without a single run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .errors import ArgumentError, ExchangeMismatch, TopologyError

if TYPE_CHECKING:
    from .topology import Cartesian

__all__ = [
    "Copy",
    "Lane",
    "Plan",
    "Recv",
    "Send",
    "check_plans",
    "plan_dissemination",
    "plan_exchange",
    "plan_permute",
    "plan_shift",
]

LEFTWARD, RIGHTWARD = 0, 1  # keys of the two lanes of an exchange: the way that the data travels


class Send(NamedTuple):
    """Send what travels on lane ``key`` to ``peer``."""

    peer: int
    key: int


class Recv(NamedTuple):
    """Receive what travels on lane ``key`` from ``peer``."""

    peer: int
    key: int


class Copy(NamedTuple):
    """What travels on lane ``key`` stays here: no message."""

    key: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One tree on its way, seen from one rank.

    Args:
        key: The lane's number, the same on every rank.
        destination: Rank that gets mine; ``None`` beyond an open end.
        source: Rank whose tree I get; ``None`` beyond an open end.
    """

    key: int
    destination: int | None
    source: int | None

    def reverse(self) -> Lane:
        """Return the lane that the gradient takes."""
        return Lane(self.key, self.source, self.destination)


@dataclass(frozen=True)
class Plan:
    """All lanes of one operation on one rank.

    Args:
        op: The operation with its arguments, for error texts and for the signature.
        rank: Whose plan it is.
        size: Ranks of the topology.
        lanes: In ascending order of their keys.
    """

    op: str
    rank: int
    size: int
    lanes: tuple[Lane, ...]
    _reverse: list[Plan] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        for lane in self.lanes:
            for peer in (lane.destination, lane.source):
                if peer is not None and not 0 <= peer < self.size:
                    raise TopologyError(
                        f"{self.op}: a peer must be in 0..{self.size - 1}, got {peer}"
                        f" (rank {self.rank} of {self.size})"
                    )

    @property
    def operation(self) -> str:
        """The operation without its arguments: ``shift``."""
        return re.split(r"\W", self.op, maxsplit=1)[0]

    def reverse(self) -> Plan:
        """Return the adjoint: every lane runs the other way."""
        if not self._reverse:
            lanes = tuple(lane.reverse() for lane in self.lanes)
            self._reverse.append(Plan(self.op, self.rank, self.size, lanes, [self]))
        return self._reverse[0]

    @property
    def steps(self) -> tuple[Send | Recv | Copy, ...]:
        """What this rank does.

        Sends and receives both stand in the order of the keys. Since a key is the same on both
        ends, the k-th message that I send to a peer is the k-th that it awaits from me: right
        also on backends that ignore tags (NCCL), and on a ring of two.
        """
        steps: list[Send | Recv | Copy] = []
        for lane in self.lanes:
            if lane.destination == self.rank:
                steps.append(Copy(lane.key))
            elif lane.destination is not None:
                steps.append(Send(lane.destination, lane.key))
        steps += [
            Recv(lane.source, lane.key)
            for lane in self.lanes
            if lane.source is not None and lane.source != self.rank
        ]
        return tuple(steps)


def plan_shift(topology: Cartesian, rank: int, axis: int, offset: int) -> Plan:
    """Return the plan of ``shift``: mine goes to rank + offset along the axis."""
    source, destination = topology.neighbours(rank, axis, offset)
    op = f"shift(offset={offset}, axis={topology.axes[axis]!r})"
    return Plan(op, rank, topology.size, (Lane(0, destination, source),))


def plan_exchange(topology: Cartesian, rank: int, axis: int) -> Plan:
    """Return the plan of ``exchange``: lane 0 travels to the left, lane 1 to the right."""
    left, right = topology.neighbours(rank, axis, 1)
    lanes = (Lane(LEFTWARD, left, right), Lane(RIGHTWARD, right, left))
    return Plan(f"exchange(axis={topology.axes[axis]!r})", rank, topology.size, lanes)


def plan_permute(size: int, rank: int, pairs: Sequence[tuple[int, int]]) -> Plan:
    """Return the plan of ``permute``; ``pairs`` are (source, destination).

    Raises:
        ArgumentError: A rank twice among the sources or among the destinations, or one that the
            topology does not have.
    """
    _check_pairs(size, rank, pairs)
    destination = next((d for s, d in pairs if s == rank), None)
    source = next((s for s, d in pairs if d == rank), None)
    op = f"permute({', '.join(f'{s}->{d}' for s, d in sorted(pairs))})"
    return Plan(op, rank, size, (Lane(0, destination, source),))


def plan_dissemination(op: str, size: int, rank: int) -> tuple[Plan, ...]:
    """Return the rounds after which every rank has heard of every other: ceil(log2(size)).

    In round k what a rank knows goes to rank + 2**k. Where the size is no power of two some ranks
    are heard of twice: right for a minimum or a maximum, not for a sum.

    Source: the dissemination barrier (Hensgen, Finkel and Manber, 1988).
    """
    return tuple(
        Plan(
            f"{op}, round {number + 1} of {(size - 1).bit_length()}",
            rank,
            size,
            (Lane(0, (rank + 2**number) % size, (rank - 2**number) % size),),
        )
        for number in range((size - 1).bit_length())
    )


def _check_pairs(size: int, rank: int, pairs: Sequence[tuple[int, int]]) -> None:
    here = f"(rank {rank} of {size})"
    for pair in pairs:
        if not all(0 <= r < size for r in pair):
            raise ArgumentError(
                f"permute: pairs must hold ranks in 0..{size - 1}, got {pair} {here};"
                " give (source, destination) pairs of topology ranks"
            )
    for what, ranks in zip(("source", "destination"), zip(*pairs, strict=True), strict=False):
        double = sorted({r for r in ranks if ranks.count(r) > 1})
        if double:
            raise ArgumentError(
                f"permute: every {what} may stand in one pair only, got rank {double[0]} in"
                f" several {here}; leave one out, or permute twice"
            )


def check_plans(plans: Iterable[Plan]) -> None:
    """Raise unless the plans of all ranks fit together.

    They fit if between each two ranks the k-th message sent is the k-th awaited, lane by lane.

    Raises:
        ExchangeMismatch: A message is sent and not awaited, awaited and not sent, or two stand in
            another order; or a rank is there twice, or missing.
    """
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    awaited: dict[tuple[int, int], list[int]] = defaultdict(list)
    ranks: list[int] = []
    size = 0
    for plan in plans:
        ranks.append(plan.rank)
        size = plan.size
        for step in plan.steps:
            if isinstance(step, Send):
                sent[plan.rank, step.peer].append(step.key)
            elif isinstance(step, Recv):
                awaited[step.peer, plan.rank].append(step.key)
    if sorted(ranks) != list(range(size)):
        raise ExchangeMismatch(
            f"check_plans: expected one plan for each rank of 0..{size - 1}, got {sorted(ranks)}"
        )
    for source, destination in sorted(sent.keys() | awaited.keys()):
        out, into = sent[source, destination], awaited[source, destination]
        if out != into:
            raise ExchangeMismatch(
                f"rank {source} sends lanes {out} to rank {destination}, which awaits {into}"
            )
