"""Halo exchange and its adjoint: the public surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..chain import caller
from ..compiled.eager import eager_only, graphable
from ..moves import Moves
from ..pending import Pending
from ..tracing import tracing
from .arguments import Dims, Width, check_out, check_shapes, field_of, request_of, without_halos
from .boundary import Mode
from .crossing import Carrier, Crossing, gather_back
from .layout import find_layout

if TYPE_CHECKING:
    from torch import Tensor

    from ..binding import Binding
    from ..routes import Shapes

__all__ = ["Halos"]


class Halos(Moves):
    """Operations on a field that lies in shards on the ranks of a mesh."""

    @graphable
    def halo_exchange(
        self,
        x: Tensor,
        dims: Dims,
        width: Width = 1,
        mode: Mode = "zeros",
        *,
        out: Tensor | None = None,
        shapes: Shapes = "once",
        timeout: float | None = None,
    ) -> Tensor:
        """Return the shard with the neighbours' rows around it.

        What each rank gets is its part of the whole field padded dim after dim, as
        ``torch.nn.functional.pad`` would: corners included, by two messages for each dim.

        Called by: every rank, with the same dims, widths and mode.
        Gradient: :meth:`halo_reduce`, to every order.

        Args:
            x: This rank's shard. Shards may have different sizes along a sharded dim; ranks on
                one line of an axis must agree on all other dims.
            dims: Which dim of ``x`` lies along which axis, as ``{2: "y", 3: "x"}``.
            width: Rows of the halo: a number, (before, after), or a mapping of one of these for
                each dim.
            mode: What lies beyond an open end: "zeros", "replicate" (the last row again) or
                "reflect" (about the last row, which is not repeated). A periodic axis wraps.
            out: Memory for the result, which is an alias of it. If ``x`` is its interior
                (``out.narrow(dim, before, size)`` for each sharded dim, the same memory and
                strides) the interior is not copied: only the halos are written.
            shapes: "once": the sizes of all shards along the sharded dims are asked for when this
                rank's are new; later the same is expected again, so they must change on all ranks
                at one step. (Without tags in messages, and with ``verify="off"``, always.)
                "discover": at each call. "same": every shard has the sizes of this rank's.
            timeout: Seconds for each message, instead of the Exchange's.

        Returns:
            A tensor of the padded shape, never a view of ``x``.

        Raises:
            TopologyError: No such axis.
            ArgumentError: Arguments that make no sense; or, on all ranks alike, a halo wider than
                a shard that it comes from, or shards that form no grid.
            ExchangeError: It was started and did not succeed; a mismatch where ranks differ in
                their arguments or in a dim that is not sharded.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(lambda size: Ring(size, periodic=False), adapter)
            ...     x = torch.arange(2.0) + 2 * exchange.rank  # of the field 0, 1, ..., 5
            ...     return exchange.halo_exchange(x, {0: "ring"}, 1, "replicate").tolist()
            >>> simulate(3, program)
            [[0.0, 0.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 5.0]]

        Source: DistDL's HaloExchange, for the order of the dims.
        """
        if tracing():
            from .in_graph import exchange

            return exchange(self, x, dims, width, mode, out, shapes, timeout)
        binding = self._bound()
        crossing = _cross(binding, "halo_exchange", x, dims, width, mode, out, shapes, timeout)
        return crossing.finish()

    @eager_only
    def start_halo_exchange(
        self,
        x: Tensor,
        dims: Dims,
        width: Width = 1,
        mode: Mode = "zeros",
        *,
        out: Tensor | None = None,
        shapes: Shapes = "once",
        timeout: float | None = None,
    ) -> Pending[Tensor]:
        """Start :meth:`halo_exchange`; ``wait()`` on the result gives the padded shard.

        The halos of the first dim travel meanwhile, those of the others within ``wait()``, since
        corners go with them. So what needs no halo is computed in between, and the rim afterwards.
        Neither ``x`` nor ``out`` must be written to before ``wait()``.

        Called by: every rank; all wait for their started exchanges in the same order.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     x = torch.arange(4.0) + 4 * exchange.rank
            ...     pending = exchange.start_halo_exchange(x, {0: "ring"})
            ...     inner = x[:-2] + x[2:]  # sums of the two neighbours, where both are here
            ...     padded = pending.wait()
            ...     first, last = padded[:1] + padded[2:3], padded[-3:-2] + padded[-1:]
            ...     return torch.cat([first, inner, last]).tolist()
            >>> simulate(2, program)
            [[8.0, 2.0, 4.0, 6.0], [8.0, 10.0, 12.0, 6.0]]
        """
        binding = self._bound()
        operation = "start_halo_exchange"
        crossing = _cross(binding, operation, x, dims, width, mode, out, shapes, timeout)
        crossing.start()
        state = binding.engine.state
        label = f"{operation} at {caller()}"
        sent = [x] if out is None else [x, out]
        return Pending(label, None, sent, crossing.finish, state.dropped, state.landing)

    @graphable
    def halo_reduce(
        self,
        y: Tensor,
        dims: Dims,
        width: Width = 1,
        mode: Mode = "zeros",
        *,
        shapes: Shapes = "once",
        timeout: float | None = None,
    ) -> Tensor:
        """Add the halos of all padded shards to the rows that they are copies of.

        The adjoint of :meth:`halo_exchange` with the same arguments: what each rank has summed up
        in its halo (forces on a neighbour's particles, gradients) goes to the rank that owns the
        row. What lies beyond an open end goes where ``mode`` took it from.

        Called by: every rank, with the same dims, widths and mode.
        Gradient: :meth:`halo_exchange`.

        Args:
            y: A padded shard, as :meth:`halo_exchange` returns it.
            dims: As there.
            width: As there.
            mode: As there; with "zeros" what lies beyond an open end is dropped.
            shapes: As there.
            timeout: Seconds for each message, instead of the Exchange's.

        Returns:
            A new tensor of the shard's shape.

        Raises:
            TopologyError: No such axis.
            ArgumentError: As :meth:`halo_exchange`; or ``y`` has no room for its halos.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     return exchange.halo_reduce(torch.ones(4), {0: "ring"}).tolist()
            >>> simulate(3, program)  # each row is in a halo of one other rank, too
            [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
        """
        if tracing():
            from .in_graph import reduce

            return reduce(self, y, dims, width, mode, shapes, timeout)
        binding = self._bound()
        y = field_of(binding, "halo_reduce", y)
        request = request_of(binding, "halo_reduce", y, dims, width, mode)
        inner = without_halos(binding, "halo_reduce", request, y.shape)
        check_shapes("halo_reduce", shapes)
        layout = find_layout(binding, request, inner, shapes, timeout)
        return gather_back(Carrier(binding, timeout), layout, y)


def _cross(
    binding: Binding,
    operation: str,
    x: Tensor,
    dims: Dims,
    width: Width,
    mode: Mode,
    out: Tensor | None,
    shapes: Shapes,
    timeout: float | None,
) -> Crossing:
    field = field_of(binding, operation, x)
    # One name for both forms: a rank may start what its neighbour does at once.
    request = request_of(binding, "halo_exchange", field, dims, width, mode)
    check_shapes(operation, shapes)
    layout = find_layout(binding, request, field.shape, shapes, timeout)
    if out is not None:
        check_out(binding, layout, field, field_of(binding, operation, out))
    return Crossing(Carrier(binding, timeout), layout, field, out)
