"""Exchanges along a line of ranks: the moves that collective operations are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from .binding import Route
from .checks import plain
from .errors import ExchangeMismatch
from .line import line_of
from .move import move

if TYPE_CHECKING:
    from .binding import Binding
    from .line import Line
    from .plan import Plan
    from .routes import Axis

__all__ = ["Along", "Leaves", "Way", "make_plan"]

Leaves = list[Tensor]
Way = Literal["each", "next"] | int  # to each, to the next, or from one position to each


class Along:
    """The exchanges of one collective operation on one line.

    Args:
        binding: Of the Exchange.
        op: With its arguments, as it stands in signatures and error texts.
        axis: Of the line; ``None``: all ranks.
        timeout: Seconds for each exchange, instead of the Exchange's.

    Raises:
        TopologyError: No such axis, or no axes at all.
    """

    def __init__(self, binding: Binding, op: str, axis: Axis, timeout: float | None) -> None:
        self.binding, self.op, self.timeout = binding, op, timeout
        self.line = line_of(binding.topology, binding.engine.rank, axis, op)
        self.count, self.position = len(self.line), self.line.position
        self.here = binding.here
        self.hint = ""  # for the errors of its exchanges
        self.constant = False  # whether this rank's tree needs no gradient

    def to_each(
        self, blocks: Sequence[Leaves], expected: Sequence[Leaves], about: str = ""
    ) -> list[Leaves]:
        """Send ``blocks[q]`` to position q; return what came, by position.

        Args:
            blocks: One for each position, this one included.
            expected: Tensors of the shapes and dtypes that come from each position.
            about: What is sent, if it is not the operation's own data.
        """
        here, count = self.position, self.count
        trees = (*(None,) * here, *blocks, *(None,) * (count - 1 - here))
        leaving: list[Leaves | None] = [None] * count
        leaving[here] = expected[here]
        like = (*expected[:here], *leaving, *expected[here + 1 :])
        arrived = self._move("each", trees, like, about)
        return cast("list[Leaves]", [*arrived[:here], arrived[2 * here], *arrived[here + count :]])

    def to_next(self, leaves: Leaves, expected: Leaves) -> Leaves:
        """Send leaves to the next position; return those of the one before."""
        (arrived,) = self._move("next", (leaves,), (expected,))
        return cast("Leaves", arrived)

    def from_one(self, source: int, blocks: Sequence[Leaves]) -> Leaves:
        """Send ``blocks[q]`` from position ``source`` to position q; return what came here.

        On other ranks ``blocks`` says what to expect, and gets zeros for a gradient: so autograd
        finds its way through the exchange there too, also where only some gradients are asked for.
        """
        here = self.position
        if here != source:
            (arrived,) = self._move(source, (blocks[here],), (blocks[here],))
            return cast("Leaves", arrived)
        like: list[Leaves | None] = [None] * self.count
        like[here] = blocks[here]
        return cast("Leaves", self._move(source, tuple(blocks), tuple(like))[here])

    def ask(self, numbers: Sequence[Sequence[int]]) -> list[list[int]]:
        """Tell ``numbers[q]`` to position q; return what each position told, as many numbers."""
        device = self.binding.engine.device
        # A torch.func transform would wrap the numbers too, and what is wrapped has no memory.
        with torch.no_grad(), torch._C._DisableFuncTorch():
            mine = [[torch.tensor(row, dtype=torch.int64, device=device)] for row in numbers]
            told = self.to_each(mine, [mine[self.position]] * self.count, ", sizes")
            return [row.tolist() for (row,) in told]

    def plain(self, x: Tensor) -> Tensor:
        """Return a tensor of the tree as an alias that is raw memory, or say why there is none."""
        return plain(self.binding, self.op, x)

    def _move(
        self,
        way: Way,
        trees: tuple[object, ...],
        like: tuple[object, ...],
        about: str = "",
    ) -> tuple[object, ...]:
        routes, key = self.binding.routes, (self.op, way, about)
        route = routes.get(key)
        if route is None:
            route = routes[key] = Route(make_plan(self.line, self.op + about, way))
        try:
            arrived = move(self.binding, route, trees, like, timeout=self.timeout)
        except ExchangeMismatch as error:
            if not self.hint:
                raise
            raise ExchangeMismatch(f"{error}. {self.hint}") from error
        if self.constant:
            self.binding.engine.state.chain.excuse(route.plan.op)
        return arrived


def make_plan(line: Line, op: str, way: Way) -> Plan:
    """Return the plan of one of the ways along a line."""
    if way == "each":
        return line.to_each(op)
    if way == "next":
        return line.to_next(f"{op}, round the line")
    return line.from_one(op, way)
