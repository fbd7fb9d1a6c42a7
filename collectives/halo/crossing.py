"""One halo exchange under way: dim after dim, so that corners are right without messages of theirs.

The slabs of a dim include the halos of the dims before it. A corner so travels along one axis and
then along the other: two messages for each dim, whatever the number of dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..move import move, start_move
from .boundary import beyond, fold_back
from .pieces import Assemble, Cut, Merge, Split, apply

if TYPE_CHECKING:
    from ..binding import Binding
    from ..pending import Pending
    from .layout import Layout, Leg, Span

__all__ = ["Carrier", "Crossing", "gather_back"]

Slabs = list[Tensor | None]  # four of a leg, as its spans
Halos = list[tuple[Tensor, Tensor]]  # left and right, of the legs so far
Trees = tuple[object, ...]


class Carrier:
    """Takes slabs along one leg, forward or back.

    Args:
        binding: Of the Exchange.
        timeout: Seconds for each leg.
    """

    def __init__(self, binding: Binding, timeout: float | None) -> None:
        self.binding, self.timeout = binding, timeout

    def carry(
        self, leg: Leg, trees: Trees, like: Trees | None, *, back: bool, constant: bool
    ) -> Trees:
        """Send one slab down each lane; return what arrives.

        Args:
            leg: With a route.
            trees: The slabs.
            like: What arrives, where that has other sizes.
            back: Along the adjoint.
            constant: Whether the field of this rank needs no gradient.
        """
        route = leg.back if back else leg.route
        assert route is not None
        arrived = move(self.binding, route, trees, like, timeout=self.timeout)
        if constant:
            self.binding.engine.state.chain.excuse(route.plan.op)
        return arrived

    def start(self, leg: Leg, trees: Trees, like: Trees | None) -> Pending[Trees]:
        """Start to carry slabs forward."""
        assert leg.route is not None
        return start_move(self.binding, leg.route, trees, _as_they_are, like, timeout=self.timeout)


class Crossing:
    """Halos on their way to a shard.

    Args:
        carrier: Takes them there.
        layout: For this shard.
        x: The shard.
        out: Memory for the padded shard, or none.
    """

    def __init__(
        self, carrier: Carrier, layout: Layout, x: Tensor, out: Tensor | None = None
    ) -> None:
        self._carrier, self._layout, self._out = carrier, layout, out
        self._x, *cut = apply(Cut(layout), x)
        self._slabs = list(_by_leg(layout, cut))
        self._halos: Halos = []
        self._started: tuple[Slabs, Pending[Trees]] | None = None

    def start(self) -> None:
        """Post the first slabs that travel."""
        while (leg := self._next()) is not None:
            slabs = self._extended(leg)
            if leg.route is not None:
                trees, like = _sides(leg, slabs[0], slabs[1])
                self._started = slabs, self._carrier.start(leg, trees, like)
                return
            self._take(leg, slabs, (None, None))

    def finish(self) -> Tensor:
        """Return the padded shard once all slabs have come."""
        started, self._started = self._started, None
        if started is not None:
            slabs, pending = started
            leg = self._layout.legs[len(self._halos)]
            self._take(leg, slabs, _by_lane(leg, pending.wait()))
        while (next_leg := self._next()) is not None:
            slabs = self._extended(next_leg)
            arrived: Slabs = [None, None]
            if next_leg.route is not None:
                trees, like = _sides(next_leg, slabs[0], slabs[1])
                constant = not self._x.requires_grad
                came = self._carrier.carry(next_leg, trees, like, back=False, constant=constant)
                arrived = _by_lane(next_leg, came)
            self._take(next_leg, slabs, arrived)
        pieces = [halo for pair in self._halos for halo in pair]
        return apply(Assemble(self._layout, self._out), self._x, *pieces)[0]

    def _next(self) -> Leg | None:
        done = len(self._halos)
        return self._layout.legs[done] if done < len(self._layout.legs) else None

    def _extended(self, leg: Leg) -> Slabs:
        """Return the slabs of a leg with the halos of the dims before it."""
        cut = self._slabs[len(self._halos)]
        return [
            None if span is None or slab is None else self._extend(slab, span)
            for span, slab in zip(leg.spans, cut, strict=True)
        ]

    def _extend(self, slab: Tensor, span: Span) -> Tensor:
        for leg, (left, right) in zip(self._layout.legs, self._halos, strict=False):
            if leg.strip.before or leg.strip.after:
                slab = torch.cat([span.of(left), slab, span.of(right)], leg.dim)
        return slab

    def _take(self, leg: Leg, slabs: Slabs, arrived: Sequence[Tensor | None]) -> None:
        from_right, from_left = arrived
        left = self._halo(leg, from_left, slabs[2], leg.strip.made_before)
        right = self._halo(leg, from_right, slabs[3], leg.strip.made_after)
        self._halos.append((left, right))

    def _halo(self, leg: Leg, came: Tensor | None, edge: Tensor | None, rows: int) -> Tensor:
        if edge is None:
            assert came is not None
            return came
        made = beyond(self._layout.request.mode, edge, leg.dim, rows)
        # At an end of the field nothing came, and that has no rows. It ties the result to the
        # exchange all the same: whoever needs this rank in the backward must not wait in vain.
        return made if came is None else torch.cat([came, made], leg.dim)


def gather_back(carrier: Carrier, layout: Layout, y: Tensor) -> Tensor:
    """Add the halos of padded shards to the rows that they are copies of: the adjoint."""
    interior, *pieces = apply(Split(layout), y)
    halos = list(zip(pieces[::2], pieces[1::2], strict=True))
    slabs: list[Tensor] = []
    for leg in reversed(layout.legs):
        left, right = halos.pop()
        strip, mode, dim = leg.strip, layout.request.mode, leg.dim
        given: Slabs = [None, None]
        if leg.back is not None:
            trees, like = _sides(
                leg,
                right.narrow(dim, 0, strip.from_right),
                left.narrow(dim, 0, strip.from_left),
                back=True,
            )
            constant = not y.requires_grad
            given = _by_lane(leg, carrier.carry(leg, trees, like, back=True, constant=constant))
        made = (
            fold_back(mode, left.narrow(dim, strip.from_left, strip.made_before), dim),
            fold_back(mode, right.narrow(dim, strip.from_right, strip.made_after), dim),
        )
        own = []
        for span, slab in zip(leg.spans, (*given, *made), strict=True):
            if span is not None:
                assert slab is not None
                own.append(_retract(layout, halos, slab, span))
        slabs = own + slabs
    return apply(Merge(layout), interior, *slabs)[0]


def _retract(layout: Layout, halos: Halos, slab: Tensor, span: Span) -> Tensor:
    """Hand the halos within a slab back to those of the dims before it; return the rest."""
    for i in reversed(range(len(halos))):
        strip, dim = layout.legs[i].strip, layout.legs[i].dim
        if strip.before or strip.after:
            left, slab, right = slab.split([strip.before, strip.size, strip.after], dim)
            halos[i] = (_added(halos[i][0], left, span), _added(halos[i][1], right, span))
    return slab


def _added(halo: Tensor, part: Tensor, span: Span) -> Tensor:
    if not part.numel():
        return halo
    rows = span.of(halo) + part
    return halo.slice_scatter(rows, span.dim, span.start, span.start + span.length)


def _sides(
    leg: Leg, leftward: Tensor | None, rightward: Tensor | None, *, back: bool = False
) -> tuple[Trees, Trees | None]:
    """Return what leaves on each lane, and what arrives where that has other sizes."""
    strip = leg.strip
    arriving = (strip.to_left, strip.to_right) if back else (strip.from_right, strip.from_left)
    lanes = [
        (slab, rows)
        for slab, rows, span in zip((leftward, rightward), arriving, leg.spans, strict=False)
        if span is not None and slab is not None
    ]
    trees = tuple(slab for slab, _ in lanes)
    if all(slab.shape[leg.dim] == rows for slab, rows in lanes):
        return trees, None
    return trees, tuple(_described(slab, leg.dim, rows) for slab, rows in lanes)


def _described(slab: Tensor, dim: int, rows: int) -> Tensor:
    shape = list(slab.shape)
    shape[dim] = rows
    return torch.empty(shape, dtype=slab.dtype, device="meta")


def _by_lane(leg: Leg, arrived: Trees) -> Slabs:
    """Return what arrived on the leftward and on the rightward lane; ``None`` for one not used."""
    came = iter(arrived)
    return [cast("Tensor", next(came)) if span is not None else None for span in leg.spans[:2]]


def _by_leg(layout: Layout, cut: Iterable[Tensor]) -> Iterator[Slabs]:
    slabs = iter(cut)
    for leg in layout.legs:
        yield [None if span is None else next(slabs) for span in leg.spans]


def _as_they_are(arrived: Trees) -> Trees:
    return arrived
