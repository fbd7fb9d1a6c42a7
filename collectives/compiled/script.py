"""One exchange of compiled code, as text: all of it that is known when the code is traced.

Compiled code outlives the process that made it (inductor's caches, ``torch.export``), so nothing in
it may be a handle that means something else elsewhere. The text says it all: which Exchange, who
sends what to whom, what arrives but for its sizes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from ..messages import Leaf
from ..plan import Lane, Plan

__all__ = ["Kind", "Number", "Script", "differentiable"]

Kind = tuple[str, int]  # dtype and number of dims
Number = int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One exchange, forward or backward.

    Args:
        handle: Of the Exchange in the process that traced it.
        identity: Digest of what makes another Exchange do as well: name and topology.
        op: The operation in words.
        rank: Of the process that traced it.
        size: Ranks of the topology.
        device: Where tensors live.
        lanes: Key, destination and source of each.
        sent: Number of tensors that leave on each lane.
        came: Dtype and number of dims of what arrives, lane by lane.
        trees: Forward, for each lane: how the trees that leave and arrive are built, in words.
        grad: Whether grad mode was on in the forward.
        wanted: Whether an input needs a gradient on this rank.
        chained: Whether it is part of the chain of the process that runs it.
        phase: Index into ``signature.PHASES``.
        fill: Value beyond an open end.
        timeout: Seconds, instead of the Exchange's.
        place: File and line of the caller.
    """

    handle: str
    identity: str
    op: str
    rank: int
    size: int
    device: str
    lanes: tuple[tuple[int, int | None, int | None], ...]
    sent: tuple[int, ...] = ()
    came: tuple[tuple[Kind, ...], ...] = ()
    trees: tuple[tuple[str, str], ...] = ()
    grad: bool = False
    wanted: bool = False
    chained: bool = False
    phase: int = 0
    fill: Number = 0
    timeout: float | None = None
    place: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        """The script as it stands in graphs."""
        values = asdict(self)
        if isinstance(self.fill, complex):
            values["fill"] = {"real": self.fill.real, "imag": self.fill.imag}
        return json.dumps(values, separators=(",", ":"))

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def parse(text: str) -> Script:
        """Read a script."""
        values = json.loads(text)
        fill = values["fill"]
        values["fill"] = complex(fill["real"], fill["imag"]) if isinstance(fill, dict) else fill
        values["lanes"] = tuple(map(tuple, values["lanes"]))
        values["sent"] = tuple(values["sent"])
        values["came"] = tuple(tuple(map(tuple, lane)) for lane in values["came"])
        values["trees"] = tuple(map(tuple, values["trees"]))
        values["place"] = values["place"] and tuple(values["place"])
        return Script(**values)

    @property
    def plan(self) -> Plan:
        """Who sends what to whom."""
        return Plan(self.op, self.rank, self.size, tuple(Lane(*lane) for lane in self.lanes))

    @property
    def kinds(self) -> list[Kind]:
        """What arrives, through all lanes."""
        return [kind for lane in self.came for kind in lane]

    def leaves(self, sizes: Sequence[int]) -> tuple[tuple[Leaf, ...], ...]:
        """Return what arrives, lane by lane.

        Args:
            sizes: Those of all dims of all tensors.
        """
        left = iter(sizes)
        return tuple(
            tuple(
                Leaf(tuple(next(left) for _ in range(dims)), dtype_of(name)) for name, dims in lane
            )
            for lane in self.came
        )

    def reverse(self, kinds: Sequence[Kind]) -> Script:
        """Return the adjoint: it carries the gradients of what is differentiable.

        Args:
            kinds: Of what was sent, through all lanes.
        """
        left = iter(kinds)
        came = tuple(tuple(next(left) for _ in range(count)) for count in self.sent)
        return replace(
            self,
            lanes=tuple((key, source, destination) for key, destination, source in self.lanes),
            sent=tuple(sum(differentiable(kind) for kind in lane) for lane in self.came),
            came=tuple(tuple(kind for kind in lane if differentiable(kind)) for lane in came),
            trees=(),
            phase=1 if self.phase != 1 else 2,
            fill=0,
        )


def differentiable(kind: Kind) -> bool:
    """Whether gradients flow through such a tensor."""
    dtype = dtype_of(kind[0])
    return dtype.is_floating_point or dtype.is_complex


@functools.cache
def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
