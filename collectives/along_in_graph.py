"""Exchanges along a line of ranks while code is traced; imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .along import Along, Way, make_plan
from .compiled.at_trace import constant
from .compiled.live import named
from .compiled.traced import move
from .line import line_of

if TYPE_CHECKING:
    from torch import Tensor

    from .binding import Binding
    from .moves import Moves
    from .plan import Plan
    from .routes import Axis

__all__ = ["AlongInGraph"]


class AlongInGraph(Along):
    """As its base; what depends on the process is looked up when the code is traced."""

    def __init__(self, exchange: Moves, op: str, axis: Axis, timeout: float | None) -> None:
        self.exchange, self.op, self.axis, self.timeout = exchange, op, axis, timeout
        self.count, self.position, self.here = _line(exchange._handle, op, axis)
        self.hint = ""
        self.constant = False

    def plain(self, x: Tensor) -> Tensor:
        """Return an alias; the operator itself refuses what cannot be sent."""
        return x.view_as(x)

    def _move(
        self, way: Way, trees: tuple[object, ...], like: tuple[object, ...], about: str = ""
    ) -> tuple[object, ...]:
        arguments = (self.op + about, self.axis, way)
        return move(
            self.exchange,
            _plan,
            arguments,
            trees,
            like,
            timeout=self.timeout,
            constant=self.constant,
        )


@constant
def _line(handle: str, op: str, axis: Axis) -> tuple[int, int, str]:
    binding = named(handle)._bound()
    line = line_of(binding.topology, binding.engine.rank, axis, op)
    return len(line), line.position, binding.here


def _plan(binding: Binding, op: str, axis: Axis, way: Way) -> Plan:
    return make_plan(line_of(binding.topology, binding.engine.rank, axis, op), op, way)
