"""Neighbourhood operations: along all edges of a topology at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast, get_args

from .binding import resolve
from .compiled.eager import beyond_graphs, eager_only, graphable
from .edges import graph_at, plan_edges
from .errors import ArgumentError
from .explain import explain
from .flats import check_averaged, weighted_sums
from .move import move
from .moves import Moves
from .neighbours import find_edges
from .routes import Axis, Pairs, Shapes
from .topology import Cartesian
from .tracing import tracing
from .trees import flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

    from .binding import Binding
    from .context import Placed
    from .neighbours import EdgeRoute
    from .neighbours_in_graph import EdgesInGraph

__all__ = ["Neighbourhoods"]

T = TypeVar("T")
Trees: TypeAlias = tuple[object, ...]
Operation: TypeAlias = Literal[
    "shift",
    "exchange",
    "permute",
    "neighbor_allgather",
    "neighbor_alltoall",
    "neighbor_allreduce",
    "gossip_",
]


class Neighbourhoods(Moves):
    """The operations over a topology's edges; see :class:`~collectives.Exchange`.

    Over a :class:`~collectives.Graph`, results stand in the order of the edges that arrive
    (``graph.sources(rank)``), and what is given in the order of those that leave
    (``graph.destinations(rank)``). A Ring or Mesh has two edges per axis at every rank, each way:
    left and right on the first axis, left and right on the second, ...; beyond an open end stand
    zeros. A Schedule has the edges of its graph of the given ``step``, which is part of matching.

    They are linear; the adjoint runs along the reversed edges.

    Source: MPI's neighbourhood collectives (MPI-4.1, 8.6).
    """

    @graphable
    def neighbor_allgather(
        self,
        tree: T,
        *,
        step: int | None = None,
        like: Sequence[T] | None = None,
        out: Sequence[T] | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> tuple[T, ...]:
        """Send one tree along every edge that leaves; return one for every edge that arrives.

        Called by: every rank. Gradient: that of each result flows back along its edge; a rank gets
        the sum over the edges that leave it.

        Args:
            tree: Tensor, or tuple, list, dict, NamedTuple, dataclass of tensors; any strides.
            step: Which graph of a Schedule; without meaning elsewhere.
            like: Shapes and dtypes of what arrives, edge by edge, where they differ from ``tree``.
            out: Buffers to write into, edge by edge.
            shapes: "discover": shapes and dtypes are the sender's, who is asked first; the trees
                are built like ``tree``. "once": asked only when it is new. As in :meth:`shift`.
            timeout: Seconds, instead of the Exchange's.

        Returns:
            New tensors, never views of the input; none for a rank at which no edge arrives.

        Raises:
            TopologyError: A Schedule without ``step``.
            ArgumentError: A tree that cannot be sent, or not one ``like`` or ``out`` for each edge.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Graph.star, adapter)
            ...     mine = torch.tensor(float(exchange.rank))
            ...     return [x.item() for x in exchange.neighbor_allgather(mine)]
            >>> simulate(4, program)
            [[1.0, 2.0, 3.0], [0.0], [0.0], [0.0]]

        Source: MPI_Neighbor_allgather.
        """
        binding, route = self._edges("neighbor_allgather", step, shapes, out)
        expected, buffers = route.expected(binding, tree, like), route.buffers(binding, out)
        arrived = _move(binding, route, route.to_all(tree), expected, buffers, timeout)
        return cast("tuple[T, ...]", route.in_order(arrived))

    @graphable
    def neighbor_alltoall(
        self,
        trees: Sequence[T],
        *,
        step: int | None = None,
        like: Sequence[T] | None = None,
        out: Sequence[T] | None = None,
        shapes: Shapes = "same",
        timeout: float | None = None,
    ) -> tuple[T, ...]:
        """Send a tree of its own along each edge that leaves; return one for each that arrives.

        Called by: every rank. Gradient: flows back along the edges.

        Args:
            trees: One for each edge that leaves. On a Ring or Mesh also for edges beyond an open
                end: they are not sent, but say what comes the other way.
            step: As in :meth:`neighbor_allgather`.
            like: Shapes and dtypes of what arrives, edge by edge. By default all is like the first
                of ``trees``; on a Ring or Mesh what comes from the left is like what goes to the
                right, and the other way round, as in :meth:`exchange`.
            out: Buffers to write into, edge by edge.
            shapes: As in :meth:`neighbor_allgather`.
            timeout: Seconds, instead of the Exchange's.

        Returns:
            New tensors, never views of the input. On a ring, ``(from_left, from_right)``.

        Raises:
            TopologyError: A Schedule without ``step``.
            ArgumentError: Not one tree for each edge; edges arrive at a rank that none leaves, and
                there is no ``like``.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     mine = [torch.tensor(10.0 * exchange.rank + way) for way in (0, 1)]
            ...     return [x.item() for x in exchange.neighbor_alltoall(mine)]
            >>> simulate(3, program)
            [[21.0, 10.0], [1.0, 20.0], [11.0, 0.0]]

        Source: MPI_Neighbor_alltoall; on a ring of two with the sides as for three ranks (see
        :meth:`exchange`).
        """
        binding, route = self._edges("neighbor_alltoall", step, shapes, out)
        sent = route.dealt(binding, trees)
        if route.arriving and not route.leaving and like is None:
            raise ArgumentError(
                f"neighbor_alltoall: no edge leaves this rank {binding.here}, so nothing says what"
                f" arrives along the {len(route.arriving)} that lead to it; give like="
            )
        expected = route.expected(binding, trees[0] if trees else None, like)
        buffers = route.buffers(binding, out)
        arrived = _move(binding, route, sent, expected, buffers, timeout)
        return cast("tuple[T, ...]", route.in_order(arrived))

    @graphable
    def neighbor_allreduce(
        self,
        tree: T,
        weights: Sequence[float] | Tensor | None = None,
        *,
        step: int | None = None,
        timeout: float | None = None,
    ) -> T:
        """Return the weighted sum of my tree and those of the ranks from which edges arrive.

        By default with the weights of the topology's mixing matrix: x_i <- sum_j W[i, j] x_j.

        Called by: every rank. Gradient: the same with the transposed weights, along the reversed
        edges. Summed in the order of the edges, so results are alike on every transport.

        Args:
            tree: Of floating-point or complex tensors of the same shapes on all ranks.
            weights: What this rank takes instead: of its own first, then of each edge that
                arrives, in order (left and right of each axis on a mesh). They need not be alike
                on the ranks, nor sum to one.
            step: As in :meth:`neighbor_allgather`.
            timeout: Seconds, instead of the Exchange's.

        Returns:
            A tree like ``tree``: new tensors.

        Raises:
            TopologyError: A Schedule without ``step``.
            ArgumentError: A tree that cannot be averaged, or wrong ``weights``.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Graph.complete, adapter)
            ...     mean = exchange.neighbor_allreduce(torch.tensor(float(exchange.rank)))
            ...     return round(mean.item(), 6)
            >>> simulate(4, program)
            [1.5, 1.5, 1.5, 1.5]

        Source: BlueFog's neighbor_allreduce.
        """
        binding, route = self._edges("neighbor_allreduce", step)
        factors = route.factors(binding, weights)
        leaves, structure = flatten(tree, f"neighbor_allreduce {binding.here}")
        check_averaged(binding, "neighbor_allreduce", leaves)
        expected = route.expected(binding, leaves, None)
        arrived = _move(binding, route, route.to_all(leaves), expected, None, timeout)
        theirs = cast("tuple[list[Tensor], ...]", route.in_order(arrived))
        return cast("T", unflatten(structure, weighted_sums(factors, leaves, theirs)))

    @eager_only
    def explain(
        self,
        operation: Operation,
        *,
        offset: int = 1,
        axis: Axis = None,
        pairs: Pairs = (),
        step: int | None = None,
    ) -> str:
        """Say who sends what to whom; this rank's line is marked. Nothing is sent.

        Works before the ranks are up if the topology has a fixed size. ``offset``, ``axis``,
        ``pairs`` and ``step`` are those of the operation.

        Raises:
            TopologyError: No such axis, the size is not known yet, or a Schedule without ``step``.
            ArgumentError: Another operation: those are made of several exchanges.

        Example:
            >>> def program(adapter):
            ...     return Exchange(Graph.star(2), adapter).explain("neighbor_allgather")
            >>> print(simulate(2, program)[0])
            neighbor_allgather() on 2 ranks
              rank 0: sends edge 0 to 1; gets edge 1 of 1
              rank 1: sends edge 1 to 0; gets edge 0 of 0
        """
        if operation in ("shift", "exchange", "permute"):
            return super().explain(operation, offset=offset, axis=axis, pairs=pairs)
        if operation not in get_args(Operation):
            raise ArgumentError(
                f"explain: expected one of {', '.join(get_args(Operation))}, got {operation!r};"
                " what others have sent, exchange.flight_record() tells"
            )
        binding = self._binding
        size, mine = (None, None) if binding is None else (binding.engine.size, binding.engine.rank)
        topology = graph_at(operation, resolve(self._topology, size), step)
        plans = [plan_edges(topology, r, f"{operation}()").plan for r in range(topology.size)]
        if isinstance(topology, Cartesian):
            ways = [f"{way} ({axis})" for axis in topology.axes for way in ("to_left", "to_right")]
            return explain(plans, mine, ways)
        edges = [f"edge {number}" for number in range(len(topology.to_graph().edges))]
        return explain(plans, mine, [*edges, "nothing"], fills=False)

    def _edges(
        self, operation: str, step: int | None, shapes: Shapes = "same", out: object = None
    ) -> tuple[Placed, EdgeRoute | EdgesInGraph]:
        if tracing():
            from .neighbours_in_graph import EdgesInGraph

            if reason := beyond_graphs(operation, out, shapes):
                raise ArgumentError(reason)
            edges = EdgesInGraph(self, operation, step)
            return edges, edges
        binding = self._bound()
        return binding, find_edges(binding, operation, step, shapes)


def _move(
    binding: Placed,
    route: EdgeRoute | EdgesInGraph,
    trees: Trees,
    like: Trees | None,
    out: Trees | None,
    timeout: float | None,
) -> Trees:
    if tracing():
        return cast("EdgesInGraph", route).move(trees, like, timeout)
    return move(cast("Binding", binding), cast("EdgeRoute", route), trees, like, out, 0, timeout)
