"""Collective operations: what all ranks have, gathered, reduced, exchanged or spread."""

from __future__ import annotations

from typing import SupportsIndex, TypeVar, cast

from .along import Along
from .blocks import check_op, check_source, join_blocks, leaves_of, split_leaves
from .compiled.eager import beyond_graphs, graphable
from .errors import ArgumentError
from .moves import Moves
from .routes import Axis, Shapes
from .schedules import Op, gather, reduce_all, reduce_blocks, spread
from .sizes import Sizes, given_sizes, incoming
from .tracing import tracing
from .trees import unflatten

__all__ = ["Collectives"]

T = TypeVar("T")


class Collectives(Moves):
    """Operations over all ranks, or over a line of a mesh; see :class:`~collectives.Exchange`.

    All of them work on every topology with ``axis=None``, which here means **all ranks, by rank**
    (also on a mesh of several axes); with ``axis=`` they work on each line of ranks along it, by
    the coordinate on it, whether or not the axis is periodic. Messages go between any two ranks of
    the line.
    """

    @graphable
    def all_gather(
        self,
        tree: T,
        dim: int = 0,
        *,
        axis: Axis = None,
        sizes: Sizes | None = None,
        shapes: Shapes = "discover",
        timeout: float | None = None,
    ) -> T:
        """Concatenate the trees of all ranks along ``dim``, in their order.

        Called by: every rank, with the same arguments.
        Gradient: that of the **sum over ranks** of the losses: each rank gets the sum of what all
        ranks' losses say of its part (a :meth:`reduce_scatter`). The functions of
        ``torch.distributed`` drop it, or give only the own rank's term.

        Args:
            tree: Tensors that are alike on all ranks but for their size in ``dim``.
            dim: Of every tensor; may be negative.
            axis: Of the mesh; ``None``: all ranks.
            sizes: What each rank of the line has in ``dim``, where that is known: asks nobody.
            shapes: "discover": ranks tell each other their sizes first (one exchange of a few
                numbers, for which the host waits). "same": every rank has what this one has.
                "once": ranks tell when they have tensors of such shapes for the first time, and
                take the sizes to be the same whenever they have them again. Where that no longer
                holds it is an :class:`ExchangeMismatch`, never a wrong result; so ranks must change
                their sizes at the same step. (Where messages have no tags, and with
                ``verify="off"``, "once" asks always.)
            timeout: Seconds for each exchange, instead of the Exchange's: of small data there is
                one, of large data there are as many as there are other ranks.

        Returns:
            A tree of new tensors, the same bits on all ranks.

        Raises:
            ArgumentError: A tensor without such a dim, or wrong sizes.
            TopologyError: No such axis.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     mine = torch.full((exchange.rank + 1,), exchange.rank)
            ...     return exchange.all_gather(mine).tolist()
            >>> simulate(3, program)
            [[0, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2]]

        Source: MPI_Allgatherv.
        """
        if sizes is None and shapes != "same" and tracing():
            raise ArgumentError(beyond_graphs("all_gather", None, shapes))
        along = self._along("all_gather", axis, timeout, dim=dim)
        leaves, structure = leaves_of(along, tree, dim)
        mine = [x.shape[dim] for x in leaves]
        if sizes is None:
            expected = incoming(along, leaves, [mine] * along.count, dim, shapes)
        else:
            expected = given_sizes(along, leaves, sizes, dim)
        return cast("T", unflatten(structure, join_blocks(gather(along, leaves, expected), dim)))

    @graphable
    def reduce_scatter(
        self,
        tree: T,
        dim: int = 0,
        op: Op = "sum",
        *,
        axis: Axis = None,
        sizes: Sizes | None = None,
        timeout: float | None = None,
    ) -> T:
        """Reduce the trees of all ranks, and keep this rank's part of the result along ``dim``.

        Called by: every rank, with the same arguments and shapes.
        Gradient: that of the sum over ranks of the losses: each rank gets all parts' gradients,
        joined (an :meth:`all_gather`), divided by the number of ranks for a mean; for a maximum,
        see :meth:`all_reduce`.

        Args:
            tree: Tensors that are alike on all ranks.
            dim: Of every tensor; may be negative.
            op: "sum", "mean" or "max", element by element over the ranks.
            axis: Of the mesh; ``None``: all ranks.
            sizes: What each rank of the line gets of ``dim``; by default equal parts, and what is
                left over one by one to the first ranks.
            timeout: Seconds for each exchange, as in :meth:`all_gather`.

        Returns:
            A tree of new tensors. The terms are added in the same order in every run: for small
            data in that of the ranks; round a ring beginning with the rank after the one that
            gets the part.

        Raises:
            ArgumentError: A tensor without such a dim, or that cannot be reduced; wrong sizes.
            TopologyError: No such axis.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     return exchange.reduce_scatter(torch.arange(4) * 10 ** exchange.rank).tolist()
            >>> simulate(3, program)
            [[0, 111], [222], [333]]

        Source: MPI_Reduce_scatter; the ring of Patarasuk and Yuan (2009).
        """
        along = self._along("reduce_scatter", axis, timeout, dim=dim, op=op)
        leaves, structure = leaves_of(along, tree, dim)
        check_op(along, leaves, op)
        blocks = split_leaves(along, leaves, dim, sizes)
        return cast("T", unflatten(structure, reduce_blocks(along, blocks, op)))

    @graphable
    def all_reduce(
        self, tree: T, op: Op = "sum", *, axis: Axis = None, timeout: float | None = None
    ) -> T:
        """Reduce the trees of all ranks, element by element.

        Called by: every rank, with the same arguments and shapes.
        Gradient: that of the **sum over ranks** of the losses. So where every rank computes the
        same loss of the result, gradients come out as many times too large as there are ranks:
        that loss is then counted once for each rank. Let each rank have its own share of the loss,
        or divide by the number of ranks (as DDP does). Sum and mean: the same operation on the
        gradients. Maximum: to the ranks that hold it; where several do, each gets an equal share
        (as ``torch.amax``).

        Args:
            tree: Tensors that are alike on all ranks.
            op: "sum", "mean" or "max".
            axis: Of the mesh; ``None``: all ranks.
            timeout: Seconds for each exchange, as in :meth:`all_gather`; large data takes twice as
                many.

        Returns:
            A tree of new tensors, the same bits on all ranks, and so are the gradients of a sum or
            mean.

        Raises:
            ArgumentError: A tensor that cannot be reduced so, or no such ``op``.
            TopologyError: No such axis.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Mesh((2, 2), axes=("y", "x")), adapter)
            ...     mine = torch.tensor(2.0 ** exchange.rank)
            ...     ops = exchange.all_reduce(mine), exchange.all_reduce(mine, "max", axis="x")
            ...     return [x.item() for x in ops]
            >>> simulate(4, program)
            [[15.0, 2.0], [15.0, 2.0], [15.0, 8.0], [15.0, 8.0]]

        Source: MPI_Allreduce.
        """
        along = self._along("all_reduce", axis, timeout, op=op)
        leaves, structure = leaves_of(along, tree)
        check_op(along, leaves, op)
        return cast("T", unflatten(structure, reduce_all(along, leaves, op)))

    @graphable
    def all_to_all(
        self,
        tree: T,
        dim: int = 0,
        *,
        axis: Axis = None,
        sizes: Sizes | None = None,
        shapes: Shapes = "discover",
        timeout: float | None = None,
    ) -> T:
        """Send the q-th part of the tree along ``dim`` to rank q; join what comes, by rank.

        Called by: every rank; ``sizes`` may differ. One exchange of the data, however large.
        Gradient: travels back; that of the sum over ranks of the losses.

        Args:
            tree: Tensors that are alike on all ranks but for their size in ``dim``.
            dim: Of every tensor; may be negative.
            axis: Of the mesh; ``None``: all ranks.
            sizes: What goes to each rank of the line, in its order; by default equal parts, and
                what is left over one by one to the first ranks.
            shapes: As in :meth:`all_gather`. "same": every rank has such tensors and sizes.
            timeout: Seconds for each exchange, instead of the Exchange's.

        Returns:
            A tree of new tensors.

        Raises:
            ArgumentError: A tensor without such a dim, or wrong sizes.
            TopologyError: No such axis.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     mine = torch.arange(4) + 10 * exchange.rank
            ...     return exchange.all_to_all(mine).tolist()
            >>> simulate(2, program)
            [[0, 1, 10, 11], [2, 3, 12, 13]]

        Source: MPI_Alltoallv.
        """
        if shapes != "same" and tracing():
            raise ArgumentError(beyond_graphs("all_to_all", None, shapes))
        along = self._along("all_to_all", axis, timeout, dim=dim)
        leaves, structure = leaves_of(along, tree, dim)
        blocks = split_leaves(along, leaves, dim, sizes)
        outgoing = [[x.shape[dim] for x in block] for block in blocks]
        expected = incoming(along, leaves, outgoing, dim, shapes)
        return cast("T", unflatten(structure, join_blocks(along.to_each(blocks, expected), dim)))

    @graphable
    def broadcast(
        self,
        tree: T,
        source: SupportsIndex,
        *,
        axis: Axis = None,
        timeout: float | None = None,
    ) -> T:
        """Return the tree of rank ``source`` on all ranks.

        Called by: every rank, with the same arguments and shapes.
        Gradient: the sum of all ranks' goes to the source; it is that of the sum over ranks of the
        losses.

        Args:
            tree: What ``source`` sends; on other ranks its shapes and dtypes say what to expect,
                and its values are not looked at.
            source: Rank; with ``axis=``, the coordinate on that axis.
            axis: Of the mesh; ``None``: all ranks.
            timeout: Seconds for each exchange, as in :meth:`all_gather`.

        Returns:
            A tree of new tensors, on the source too, the same bits on all ranks.

        Raises:
            ArgumentError: No such source.
            TopologyError: No such axis.
            ExchangeError: It was started and did not succeed.

        Example:
            >>> def program(adapter):
            ...     exchange = Exchange(Ring, adapter)
            ...     return exchange.broadcast(torch.tensor(exchange.rank), 2).item()
            >>> simulate(3, program)
            [2, 2, 2]

        Source: MPI_Bcast; large data is scattered and gathered (van de Geijn).
        """
        along = self._along("broadcast", axis, timeout, source=source)
        position = check_source(along, source)
        leaves, structure = leaves_of(along, tree)
        return cast("T", unflatten(structure, spread(along, leaves, position)))

    def _along(
        self, operation: str, axis: Axis, timeout: float | None, **arguments: object
    ) -> Along:
        if axis is not None:
            arguments["axis"] = axis
        words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        if tracing():
            from .along_in_graph import AlongInGraph

            return AlongInGraph(self, f"{operation}({words})", axis, timeout)
        return Along(self._bound(), f"{operation}({words})", axis, timeout)
