"""Halos while code is traced; imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..compiled.at_trace import constant
from ..compiled.eager import beyond_graphs
from ..compiled.live import named
from ..compiled.traced import move
from ..errors import ArgumentError
from .arguments import request_of, without_halos
from .crossing import Carrier, Crossing, gather_back
from .layout import find_layout

if TYPE_CHECKING:
    from torch import Tensor

    from ..binding import Binding
    from ..moves import Moves
    from ..plan import Plan
    from ..routes import Shapes
    from .arguments import Dims, Width
    from .boundary import Mode
    from .crossing import Trees
    from .layout import Layout, Leg

__all__ = ["exchange", "reduce"]

Arguments = tuple[str, tuple[int, ...], "Dims", "Width", "Mode"]  # operation and shape first


def exchange(
    self: Moves,
    x: Tensor,
    dims: Dims,
    width: Width,
    mode: Mode,
    out: Tensor | None,
    shapes: Shapes,
    timeout: float | None,
) -> Tensor:
    """Do :meth:`Exchange.halo_exchange` in a graph, for shards of this one size."""
    _check("halo_exchange", out, shapes)
    arguments: Arguments = ("halo_exchange", _sizes(x), dims, width, mode)
    layout = _layout_in(self._handle, arguments)
    return Crossing(_CarrierInGraph(self, arguments, timeout), layout, x).finish()


def reduce(
    self: Moves,
    y: Tensor,
    dims: Dims,
    width: Width,
    mode: Mode,
    shapes: Shapes,
    timeout: float | None,
) -> Tensor:
    """Do :meth:`Exchange.halo_reduce` in a graph, for shards of this one size."""
    _check("halo_reduce", None, shapes)
    arguments: Arguments = ("halo_reduce", _sizes(y), dims, width, mode)
    layout = _layout_in(self._handle, arguments)
    return gather_back(_CarrierInGraph(self, arguments, timeout), layout, y)


class _CarrierInGraph(Carrier):
    def __init__(self, exchange: Moves, arguments: Arguments, timeout: float | None) -> None:
        self.exchange, self.arguments, self.timeout = exchange, arguments, timeout

    def carry(
        self, leg: Leg, trees: Trees, like: Trees | None, *, back: bool, constant: bool
    ) -> Trees:
        arguments = (self.arguments, leg.dim, back)
        return move(
            self.exchange,
            _plan,
            arguments,
            trees,
            like,
            timeout=self.timeout,
            constant=constant,
        )


def _check(operation: str, out: object, shapes: Shapes) -> None:
    if reason := beyond_graphs(operation, out, shapes):
        raise ArgumentError(reason)


def _sizes(x: Tensor) -> tuple[int, ...]:
    """Return a shape as numbers: who needs which rows is worked out from them.

    What is handed to ``range`` Dynamo takes for a constant, and compiles anew where it changes.
    """
    return tuple([range(size).stop for size in x.shape])


@constant
def _layout_in(handle: str, arguments: Arguments) -> Layout:
    return _layout(named(handle)._bound(), arguments)


def _layout(binding: Binding, arguments: Arguments) -> Layout:
    operation, shape, dims, width, mode = arguments
    x = torch.empty(shape, device="meta")
    request = request_of(binding, operation, x, dims, width, mode)
    inner = (
        without_halos(binding, operation, request, shape) if operation != "halo_exchange" else shape
    )
    return find_layout(binding, request, inner, "same", None)


def _plan(binding: Binding, arguments: Arguments, dim: int, back: bool) -> Plan:  # noqa: FBT001
    leg = next(leg for leg in _layout(binding, arguments).legs if leg.dim == dim)
    route = leg.back if back else leg.route
    assert route is not None
    return route.plan
