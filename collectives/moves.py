"""Moving trees along a topology: shift, exchange and permute, and what they would do.

Rule and effect are apart: ``plan`` says who sends what to whom, ``call`` which messages that
takes for these shapes, ``engine`` runs them, ``autograd`` runs them backwards. Here is only the
public surface.
"""

from __future__ import annotations

from typing import Literal, TypeVar, cast

from .binding import resolve
from .compiled.eager import eager_only
from .explain import explain
from .lifetime import Lifetime
from .move import move, start_move
from .pending import Pending
from .received import Received
from .routes import Axis, Pairs, Shapes, as_pairs, find_route, make_plan
from .tracing import tracing

__all__ = ["Moves"]

T = TypeVar("T")
L = TypeVar("L")
R = TypeVar("R")
Trees = tuple[object, ...]


class Moves(Lifetime):
    """The operations that move trees between ranks; see :class:`~collectives.Exchange`."""

    def shift(
        self,
        tree: T,
        offset: int = 1,
        *,
        axis: Axis = None,
        fill: float = 0,
        like: T | None = None,
        out: T | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> T:
        """Pass a tree on: the result on rank r is the tree of rank r - ``offset``.

        Called by: every rank, with the same offset and axis.
        Gradient: flows back to the rank that sent the tree (a shift by ``-offset``).

        Args:
            tree: Tensor, or tuple, list, dict, NamedTuple, dataclass of tensors; any strides.
            offset: Signed, in ranks along the axis; +1 is the right neighbour.
            axis: Of the mesh; may be left out where there is one.
            fill: Value of all that would come from beyond an open end.
            like: Shapes and dtypes of what arrives, where they differ from those of ``tree``.
            out: Buffers to write into, built like the result; the result is an alias of them.
            shapes: "same": what arrives is like ``tree``. "discover", on every rank: shapes and
                dtypes are the sender's, who is asked first (two small rounds; a ``start_`` form
                waits for them); the result is built like ``tree``, with as many tensors. Not with
                ``like`` or ``out``. "once": the sender is asked when this rank sends such shapes
                for the first time; later the same is expected again. Where that does not hold it
                is an :class:`ExchangeMismatch`, so shapes must change on all ranks at one step.
                (Without tags in messages, and with ``verify="off"``, it asks always.)
            timeout: Seconds, instead of the Exchange's.

        Returns:
            A tree like ``tree`` (or ``like``): new contiguous tensors, never views of the input.

        Raises:
            TopologyError: No such axis.
            ArgumentError: A tree that cannot be sent, or a wrong ``out``.
            ExchangeError: It was started and did not succeed.

        Source: MPI_Cart_shift with MPI_Sendrecv; JAX ppermute.
        """
        if tracing():
            from .graphed import shift as shift_in_graph

            return shift_in_graph(self, tree, offset, axis, fill, like, out, shapes, timeout)
        binding = self._bound()
        route = find_route(binding, "shift", shapes, axis, offset)
        (arrived,) = move(binding, route, (tree,), _one(like), _one(out), fill, timeout)
        return cast("T", arrived)

    @eager_only
    def start_shift(
        self,
        tree: T,
        offset: int = 1,
        *,
        axis: Axis = None,
        fill: float = 0,
        like: T | None = None,
        out: T | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> Pending[T]:
        """Start :meth:`shift`; ``wait()`` on the result gives the tree.

        What is sent, and ``out``, must not be written to before ``wait()``. It joins the chain of
        :meth:`join` when it is waited for, so it may be in flight during a backward. Backward
        overlaps as forward does. Every rank waits for its started exchanges in the same order.
        """
        binding = self._bound()
        route = find_route(binding, "shift", shapes, axis, offset)
        pending = start_move(binding, route, (tree,), _first, _one(like), _one(out), fill, timeout)
        return cast("Pending[T]", pending)

    def exchange(
        self,
        *,
        to_left: L,
        to_right: R,
        axis: Axis = None,
        like: Received[R, L] | None = None,
        out: Received[R, L] | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> Received[R, L]:
        """Send one tree to each neighbour and receive one from each, in one batch.

        Called by: every rank. Gradient: the same exchange with the sides crossed.

        Args:
            to_left: For the rank on the left (rank - 1). ``None``: nothing travels to the left, on
                any rank. A rank at an open end gives a tensor for its dead side too: it is not
                sent, but says what comes the other way.
            to_right: For the rank on the right; likewise.
            axis: Of the mesh; may be left out where there is one.
            like: Shapes and dtypes of what arrives, side by side, where they differ from those
                of what leaves.
            out: Buffers to write into.
            shapes: "same": what comes from the left is like my ``to_right``, from the right like
                my ``to_left``. "discover": it is built like that, but its shapes and dtypes are
                the sender's, as in :meth:`shift`; beyond an open end they are mine.
            timeout: Seconds, instead of the Exchange's.

        Returns:
            ``(from_left, from_right)``, with these names; zeros beyond an open end. With two ranks
            both neighbours are the same rank, and what was meant for its left arrives as its
            ``from_right``; with one rank ``from_left`` is a copy of ``to_right``.

        Raises:
            TopologyError: No such axis.
            ArgumentError: A tree that cannot be sent, or a wrong ``out``.
            ExchangeError: It was started and did not succeed.

        Source: MPI_Neighbor_alltoall on a Cartesian communicator.
        """
        if tracing():
            from .graphed import exchange as exchange_in_graph

            return exchange_in_graph(self, to_left, to_right, axis, like, out, shapes, timeout)
        binding = self._bound()
        route = find_route(binding, "exchange", shapes, axis)
        expected = None if like is None else _crossed(like)
        buffers = None if out is None else _crossed(out)
        arrived = move(binding, route, (to_left, to_right), expected, buffers, 0, timeout)
        # What Received() does, in half of the time.
        return tuple.__new__(Received, (arrived[1], arrived[0]))

    @eager_only
    def start_exchange(
        self,
        *,
        to_left: L,
        to_right: R,
        axis: Axis = None,
        like: Received[R, L] | None = None,
        out: Received[R, L] | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> Pending[Received[R, L]]:
        """Start :meth:`exchange`; ``wait()`` on the result gives what arrived.

        What is sent, and ``out``, must not be written to before ``wait()``. It joins the chain of
        :meth:`join` when it is waited for, so it may be in flight during a backward. Backward
        overlaps as forward does. Every rank waits for its started exchanges in the same order.
        """
        binding = self._bound()
        route = find_route(binding, "exchange", shapes, axis)
        trees = (to_left, to_right)
        expected = None if like is None else _crossed(like)
        buffers = None if out is None else _crossed(out)
        return start_move(binding, route, trees, _received, expected, buffers, 0, timeout)

    def permute(
        self,
        tree: T,
        pairs: Pairs,
        *,
        fill: float = 0,
        like: T | None = None,
        out: T | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> T:
        """Send trees along ``(source, destination)`` pairs of ranks; works on a Graph too.

        Called by: every rank, with the same pairs. Gradient: the reversed pairs.

        Args:
            tree: What this rank sends, if it is a source.
            pairs: Each rank at most once as a source and once as a destination.
            fill: Value of the result on ranks that are no destination.
            like: As in :meth:`shift`.
            out: As in :meth:`shift`.
            shapes: As in :meth:`shift`.
            timeout: Seconds, instead of the Exchange's.

        Raises:
            ArgumentError: A rank twice among the sources or the destinations.
            ExchangeError: It was started and did not succeed.

        Source: JAX ppermute.
        """
        if tracing():
            from .graphed import permute as permute_in_graph

            return permute_in_graph(self, tree, pairs, fill, like, out, shapes, timeout)
        binding = self._bound()
        route = find_route(binding, "permute", shapes, pairs=as_pairs(pairs))
        (arrived,) = move(binding, route, (tree,), _one(like), _one(out), fill, timeout)
        return cast("T", arrived)

    @eager_only
    def explain(
        self,
        operation: Literal["shift", "exchange", "permute"],
        *,
        offset: int = 1,
        axis: Axis = None,
        pairs: Pairs = (),
    ) -> str:
        """Say who sends what to whom; this rank's line is marked. Nothing is sent.

        Works before the ranks are up if the topology has a fixed size.

        Raises:
            TopologyError: No such axis, or the size is not known yet.
        """
        binding = self._binding
        size = binding.engine.size if binding is not None else None
        topology = resolve(self._topology, size)
        lanes = ("to_left", "to_right") if operation == "exchange" else ("tree",)
        plans = [
            make_plan(topology, rank, operation, axis, offset, as_pairs(pairs))
            for rank in range(topology.size)
        ]
        return explain(plans, binding.engine.rank if binding is not None else None, lanes)


def _one(tree: object) -> Trees | None:
    return None if tree is None else (tree,)


def _crossed(sides: Received[R, L]) -> Trees:
    """Return what arrives in the order of the lanes: leftward data come from the right."""
    from_left, from_right = sides
    return (from_right, from_left)


def _first(arrived: Trees) -> object:
    return arrived[0]


def _received(arrived: Trees) -> Received[R, L]:
    from_right, from_left = arrived
    return Received(from_left, from_right)  # type: ignore[arg-type]
