"""Graph: ranks joined by any directed edges, with or without weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, SupportsFloat, SupportsIndex, TypeAlias

from ..errors import TopologyError
from . import families, mixing
from .arguments import below, ordered, position, positive
from .base import Topology
from .families import Edges
from .networks import NetworkXGraph, read_network
from .weights import Weights, metropolis, numbers, rest, uniform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .cartesian import Cartesian

__all__ = ["Graph"]

Given: TypeAlias = tuple[Weights, Weights] | None  # of the edges, and of the ranks' own


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Graph(Topology):
    """Ranks joined by directed edges, numbered in the order in which they are given.

    The order is part of the graph: the k-th edge from one rank to another meets the k-th edge
    that the other one has from it. So all ranks must give the edges in the same order.

    Weights are by receiver: in one step of averaging, rank i becomes ``self_weights[i]`` times its
    own value plus, for each edge that arrives, the edge's weight times the value of its source.
    A graph without weights takes as much from each edge as it keeps of its own.

    Args:
        size: Number of ranks.
        edges: Pairs ``(source, destination)``. An edge may occur twice, and a rank may have an
            edge to itself.
        weights: One for each edge, or ``None``.
        self_weights: With ``weights``: what each rank keeps of its own; by default what its edges
            leave of one.

    Raises:
        TopologyError: ``size`` is not a positive int, ``edges`` has no order, an edge is not a pair
            of ranks in ``0..size - 1``; or weights that are not finite numbers, one for each edge
            (or rank), or that sum to more than one where ``self_weights`` are left out.

    Example:
        >>> star = Graph(3, [(0, 1), (0, 2)])
        >>> star.destinations(0), star.sources(2)
        ((1, 2), (0,))
        >>> star.reverse()
        Graph(3, ((1, 0), (2, 0)))
        >>> Graph(2, [(0, 1), (1, 0)], weights=[0.25, 0.25]).mixing_matrix().tolist()
        [[0.75, 0.25], [0.25, 0.75]]
        >>> Graph.exponential(8).destinations(0), Graph.star(4).mixing_matrix()[0].tolist()
        ((1, 2, 4), [0.25, 0.25, 0.25, 0.25])

    Source: MPI_Dist_graph_create_adjacent, which gives each rank only its own edges; BlueFog's
    topologies.
    """

    edges: Edges
    weights: Weights | None
    self_weights: Weights | None
    # How it was made, if shorter than its edges; part of the repr, and of nothing else.
    _made: str = field(compare=False)

    def __init__(
        self,
        size: SupportsIndex,
        edges: Sequence[tuple[SupportsIndex, SupportsIndex]],
        weights: Sequence[SupportsFloat] | None = None,
        self_weights: Sequence[SupportsFloat] | None = None,
    ) -> None:
        ranks = positive("Graph", "size", size)
        pairs = tuple(
            _edge(number, edge, ranks)
            for number, edge in enumerate(ordered("Graph", "edges", edges))
        )
        if weights is None and self_weights is not None:
            raise TopologyError(
                f"Graph: self_weights= need weights=, got {self_weights!r} alone; give both"
            )
        kept = None if self_weights is None else numbers("self_weights", self_weights, ranks)
        if weights is None:
            self._set(ranks, pairs, None)
        else:
            taken = numbers("weights", weights, len(pairs))
            self._set(ranks, pairs, (taken, rest(ranks, pairs, taken) if kept is None else kept))

    def _set(self, size: int, edges: Edges, given: Given, made: str = "") -> None:
        weights, own = given or (None, None)
        names = ("size", "edges", "weights", "self_weights", "_made")
        for name, value in zip(names, (size, edges, weights, own, made), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _of(cls, size: int, edges: Edges, given: Given, made: str = "") -> Graph:
        """Return a graph of what is known to be right."""
        graph = cls.__new__(cls)
        graph._set(size, edges, given, made)
        return graph

    @classmethod
    def exponential(cls, size: SupportsIndex) -> Graph:
        """Return the graph with edges from each rank to rank + 1, + 2, + 4, ...; equal weights.

        Its spectral gap falls with the logarithm of the size only: ``2 / (1 + ceil(log2(size)))``
        where the size is even.

        Source: Ying et al., "Exponential Graph is Provably Efficient", 2021.
        """
        ranks = positive("Graph.exponential", "size", size)
        edges = families.exponential(ranks)
        return cls._of(ranks, edges, uniform(ranks, edges), f"Graph.exponential({ranks})")

    @classmethod
    def star(cls, size: SupportsIndex, centre: SupportsIndex = 0) -> Graph:
        """Return the graph in which all ranks are joined to one, both ways; Metropolis weights."""
        ranks = positive("Graph.star", "size", size)
        middle = below("Graph.star", "centre", centre, ranks)
        edges = families.star(ranks, middle)
        made = f"Graph.star({ranks})" if middle == 0 else f"Graph.star({ranks}, centre={middle})"
        return cls._of(ranks, edges, metropolis(ranks, edges), made)

    @classmethod
    def complete(cls, size: SupportsIndex) -> Graph:
        """Return the graph with all edges: one step gives every rank the average."""
        ranks = positive("Graph.complete", "size", size)
        edges = families.complete(ranks)
        return cls._of(ranks, edges, uniform(ranks, edges), f"Graph.complete({ranks})")

    @classmethod
    def hypercube(cls, size: SupportsIndex) -> Graph:
        """Return the graph of ranks whose numbers differ in one bit; equal weights.

        Raises:
            TopologyError: ``size`` is no power of two.
        """
        ranks = positive("Graph.hypercube", "size", size)
        edges = families.hypercube(ranks)
        return cls._of(ranks, edges, uniform(ranks, edges), f"Graph.hypercube({ranks})")

    @classmethod
    def grid(cls, shape: Sequence[SupportsIndex]) -> Graph:
        """Return the open grid of that shape, in row-major order; Metropolis weights.

        A :class:`Mesh` is one too, with axes that can be named and closed.
        """
        extents = tuple(
            positive("Graph.grid", f"extent {index}", extent)
            for index, extent in enumerate(ordered("Graph.grid", "shape", shape))
        )
        ranks, edges = math.prod(extents), families.grid(extents)
        return cls._of(ranks, edges, metropolis(ranks, edges), f"Graph.grid({extents!r})")

    @classmethod
    def along(
        cls, mesh: Cartesian, axis: str | int | None, make: Callable[[int], Topology]
    ) -> Graph:
        """Return the graph that ``make`` makes of an axis, on every line of a mesh along it.

        Args:
            mesh: A Mesh or Ring.
            axis: Name or index.
            make: From the extent of the axis to a graph of so many ranks: ``Graph.complete``.

        Example:
            >>> hosts = Mesh((2, 2), axes=("host", "device"))
            >>> Graph.along(hosts, "device", Graph.complete).edges
            ((0, 1), (2, 3), (1, 0), (3, 2))
        """
        index = mesh.axis_index(axis, "Graph.along")
        line = make(mesh.shape[index]).to_graph().weighted()
        if line.size != mesh.shape[index]:
            raise TopologyError(
                f"Graph.along: make must give a graph of {mesh.shape[index]} ranks, the extent of"
                f" axis {mesh.axes[index]!r}, got {line.size}; pass a function: Graph.complete"
            )
        lines = sorted({mesh.along(index, rank) for rank in range(mesh.size)})
        edges = tuple((ranks[s], ranks[d]) for s, d in line.edges for ranks in lines)
        weights = tuple(weight for weight in line.weights or () for _ in lines)
        kept = line.self_weights or ()
        own = tuple(kept[mesh.coords(rank)[index]] for rank in range(mesh.size))
        return cls._of(mesh.size, edges, (weights, own))

    @classmethod
    def from_networkx(cls, network: NetworkXGraph, *, weight: str | None = None) -> Graph:
        """Return a networkx graph of any kind, whose nodes are the ranks 0, 1, ...

        Args:
            network: An edge of an undirected graph becomes two, one each way. Edges are sorted by
                source and destination, so that the order in which they were added does not matter.
            weight: The attribute of the edges that is their weight; ``None``: no weights.

        Raises:
            TopologyError: Other nodes, an edge without the attribute, or weights as for the class.
        """
        size, edges, weights = read_network(network, weight)
        return cls(size, edges, weights)

    def metropolis(self) -> Graph:
        """Return the graph with Metropolis weights, ``1 / (1 + larger degree of both ends)``.

        They are doubly stochastic on any graph whose edges all have their counterparts.

        Raises:
            TopologyError: An edge has no counterpart the other way.

        Source: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
        """
        return self._of(self.size, self.edges, metropolis(self.size, self.edges))

    def weighted(self) -> Graph:
        """Return this graph, with the weights written out that it has if none are given."""
        if self.weights is not None:
            return self
        return self._of(self.size, self.edges, uniform(self.size, self.edges))

    def sources(self, rank: SupportsIndex) -> tuple[int, ...]:
        """Return from whom edges arrive at ``rank``, in the order of the edges.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        here = position("Graph.sources", rank, self.size)
        return tuple(source for source, destination in self.edges if destination == here)

    def destinations(self, rank: SupportsIndex) -> tuple[int, ...]:
        """Return to whom edges leave from ``rank``, in the order of the edges.

        Raises:
            TopologyError: ``rank`` is not in ``0..size - 1``.
        """
        here = position("Graph.destinations", rank, self.size)
        return tuple(destination for source, destination in self.edges if source == here)

    def reverse(self) -> Graph:
        """Return the graph with every edge turned round; edges keep their numbers and weights.

        So its mixing matrix is the transpose, if weights are given; by the weights that a graph
        without any has, rows sum to one both ways.
        """
        edges = tuple((destination, source) for source, destination in self.edges)
        if self.weights is None or self.self_weights is None:
            return self._of(self.size, edges, None)
        return self._of(self.size, edges, (self.weights, self.self_weights))

    def to_graph(self) -> Graph:
        """Return itself."""
        return self

    def mixing_matrix(self) -> NDArray[np.float64]:
        """Return W, size x size: x_i <- sum_j W[i, j] x_j, so row i says what rank i takes."""
        graph = self.weighted()
        own = graph.self_weights or ()
        return mixing.matrix_of(self.size, self.edges, graph.weights or (), own)

    def axis_index(self, axis: str | int | None, operation: str = "axis_index") -> NoReturn:
        """Raise: a graph has no axes.

        Raises:
            TopologyError: Always; the text says what works instead.
        """
        raise TopologyError(
            f"{operation}: a Graph has no axes: expected a Ring or a Mesh, got a Graph of "
            f"{self.size} ranks and {len(self.edges)} edges (axis={axis!r}); use permute for pairs "
            "of ranks, or make the Exchange over a Ring or a Mesh"
        )

    def __repr__(self) -> str:
        if self._made:
            return self._made
        if self.weights is None:
            return f"Graph({self.size}, {self.edges!r})"
        return f"Graph({self.size}, {self.edges!r}, {self.weights!r}, {self.self_weights!r})"


def _edge(number: int, edge: Sequence[SupportsIndex], size: int) -> tuple[int, int]:
    ends = ordered("Graph", f"edge {number}", edge)
    if len(ends) != 2:
        raise TopologyError(
            f"Graph: edge {number} must be a pair (source, destination), got {ends!r}"
        )
    return (
        below("Graph", f"source of edge {number}", ends[0], size),
        below("Graph", f"destination of edge {number}", ends[1], size),
    )
