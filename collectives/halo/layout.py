"""What a halo exchange takes for the shards that there are: worked out once, the same on all ranks.

The sizes of all ranks' shards are found out by a small exchange of their own, for this rank's sizes
once (``shapes="once"``) or at each call. So each rank knows who needs which rows, and whatever does
not fit is refused on every rank with the same sentence, before any halo travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from ..binding import Binding, Route
from ..call import MOST_CALLS
from ..discover import notices
from ..errors import ArgumentError
from ..move import move
from ..plan import Lane, Plan, plan_dissemination
from .boundary import edge_rows
from .survey import Request, Sharded, survey

if TYPE_CHECKING:
    from ..routes import Shapes
    from ..strips import Strip
    from ..topology import Cartesian

__all__ = ["Layout", "Leg", "Place", "Span", "find_layout"]

Table = tuple[tuple[int, ...], ...]


class Span(NamedTuple):
    """Rows of one dim: ``length`` of them from ``start`` on."""

    dim: int
    start: int
    length: int

    def of(self, x: Tensor) -> Tensor:
        """Return a view of these rows."""
        return x.narrow(self.dim, self.start, self.length)


Place = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Leg:
    """One dim of a layout, on one rank.

    Args:
        dim: Of the tensor.
        strip: What is added and what is given.
        sizes: Of all shards along the line.
        route: To exchange slabs; ``None`` where no rank needs any.
        back: The adjoint.
        spans: Of what is cut out of the shard: rows for the left and for the right neighbour, and
            the rows from which those beyond the left and the right end are made. ``None``: not cut.
    """

    dim: int
    strip: Strip
    sizes: tuple[int, ...]
    route: Route | None
    back: Route | None
    spans: tuple[Span | None, Span | None, Span | None, Span | None]


@dataclass(frozen=True, slots=True)
class Layout:
    """All legs of a request on one rank.

    Args:
        request: What was asked for.
        position: Of this rank on the line of each leg.
        legs: Dim after dim: the slabs of each include the halos of those before it.

    ``interior`` and ``places`` say where the shard and its halos lie in the padded one, ``spans``
    all that is cut out of the shard, leg by leg.
    """

    request: Request
    position: tuple[int, ...]
    legs: tuple[Leg, ...]
    interior: Place = field(init=False)
    places: tuple[Place, ...] = field(init=False)
    spans: tuple[Span, ...] = field(init=False)

    def __post_init__(self) -> None:
        inner = tuple(Span(leg.dim, leg.strip.before, leg.strip.size) for leg in self.legs)
        places: list[Place] = []
        for i, leg in enumerate(self.legs):
            strip, rest = leg.strip, inner[i + 1 :]
            places.append((Span(leg.dim, 0, strip.before), *rest))
            places.append((Span(leg.dim, strip.before + strip.size, strip.after), *rest))
        object.__setattr__(self, "interior", inner)
        object.__setattr__(self, "places", tuple(places))
        cut = (span for leg in self.legs for span in leg.spans if span is not None)
        object.__setattr__(self, "spans", tuple(cut))

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a shard of that shape with its halos."""
        padded = list(shape)
        for leg in self.legs:
            padded[leg.dim] += leg.strip.before + leg.strip.after
        return tuple(padded)


def find_layout(
    binding: Binding, request: Request, shape: Sequence[int], shapes: Shapes, timeout: float | None
) -> Layout:
    """Return the layout for a shard of that shape; every rank calls it at the same place.

    Raises:
        ArgumentError: The shards do not fit together, or a halo is wider than a shard: on all
            ranks, with one sentence.
        ExchangeError: The sizes could not be exchanged.
    """
    mine = tuple(shape[one.dim] for one in request.dims)
    if shapes == "same":
        # What is assumed is part of what ranks must agree on.
        request = request._replace(op=f"{request.op}, shards all of {mine}")
    keeps = shapes == "same" or (
        shapes == "once" and notices(binding.engine, signed=binding.signed)
    )
    key = (request, mine)
    kept = binding.kept.get(key) if keeps else None
    if kept is not None:
        return cast("Layout", kept)
    if shapes == "same":
        table: Table = (mine,) * binding.engine.size
    else:
        table = _all_sizes(binding, request.op, mine, timeout)
    layout = _make_layout(binding, request, table)
    if keeps:
        # Every rank comes here for each layout, so that all of them forget at the same time.
        if len(binding.kept) >= MOST_CALLS:
            binding.kept.clear()
        binding.kept[key] = layout
    return layout


def _all_sizes(binding: Binding, op: str, mine: tuple[int, ...], timeout: float | None) -> Table:
    """Return each rank's sizes; ranks pass on what they know, and -1 for what they do not."""
    rank, size = binding.engine.rank, binding.engine.size
    # The text is what a rank reads whose sizes alone have changed: the remedy is in it.
    told = f"sizes of shards (new on some ranks only? shapes='discover') for {op}"
    # A transform of torch.func would wrap the table, which is none of its business.
    with torch.no_grad(), torch._C._DisableFuncTorch():
        table = torch.full((size, len(mine)), -1, dtype=torch.int64, device=binding.engine.device)
        table[rank] = table.new_tensor(mine)
        for plan in plan_dissemination(told, size, rank):
            route = binding.routes.setdefault((plan.op, "sizes"), Route(plan))
            (theirs,) = move(binding, route, (table,), timeout=timeout)
            assert isinstance(theirs, Tensor)
            table = torch.maximum(table, theirs)
        return tuple(tuple(map(int, row)) for row in table.tolist())


def _make_layout(binding: Binding, request: Request, table: Table) -> Layout:
    topology, rank = cast("Cartesian", binding.topology), binding.engine.rank
    try:
        surveyed = survey(topology, request, table)
    except ArgumentError as error:
        raise ArgumentError(f"{error} {binding.here}") from None
    legs, position = [], []
    for one, lines in zip(request.dims, surveyed, strict=True):
        line = topology.along(one.axis, rank)
        position.append(line.index(rank))
        everything = [strip for strips in lines.values() for strip in strips]
        legs.append(_leg(binding, request, one, lines[line], position[-1], everything))
    return Layout(request, tuple(position), tuple(legs))


def _leg(
    binding: Binding,
    request: Request,
    one: Sharded,
    line: Sequence[Strip],
    position: int,
    everything: Sequence[Strip],
) -> Leg:
    strip = line[position]
    dim, size = one.dim, strip.size
    leftward = any(each.to_left for each in everything)
    rightward = any(each.to_right for each in everything)
    route = back = None
    if leftward or rightward:
        topology = cast("Cartesian", binding.topology)
        left, right = topology.neighbours(binding.engine.rank, one.axis, 1)
        op = f"{request.op} along dim {dim}"
        plan = Plan(
            op,
            binding.engine.rank,
            topology.size,
            (*((Lane(0, left, right),) * leftward), *((Lane(1, right, left),) * rightward)),
        )
        route, back = Route(plan), Route(plan.reverse())
    left_edge, right_edge = edge_rows(request.mode, strip)
    return Leg(
        dim,
        strip,
        tuple(each.size for each in line),
        route,
        back,
        (
            Span(dim, 0, strip.to_left) if leftward else None,
            Span(dim, size - strip.to_right, strip.to_right) if rightward else None,
            Span(dim, *left_edge) if strip.made_before or not rightward else None,
            Span(dim, *right_edge) if strip.made_after or not leftward else None,
        ),
    )
