"""Graphs of networkx, which is needed only by those who use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, SupportsFloat, cast

from ..errors import TopologyError
from .arguments import plain
from .families import Edges

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from .graph import Graph

__all__ = ["NetworkXGraph", "network_of", "read_network"]


class NetworkXGraph(Protocol):
    """What is read of a networkx graph of any kind."""

    @property
    def nodes(self) -> Iterable[object]:
        """The nodes."""
        ...

    @property
    def edges(self) -> Callable[..., Iterable[tuple[object, ...]]]:
        """The edges: called with ``data=`` and ``default=``, triples."""
        ...

    def is_directed(self) -> bool:
        """Whether an edge leads one way only."""
        ...


def read_network(
    network: NetworkXGraph, weight: str | None
) -> tuple[int, Edges, list[SupportsFloat] | None]:
    """Return size, edges (sorted) and weights of a networkx graph.

    Raises:
        TopologyError: Not a networkx graph, nodes that are no ranks, an edge without a weight.
    """
    try:
        nodes, directed = list(network.nodes), network.is_directed()
        rows = list(network.edges(data=False if weight is None else weight, default=None))
    except (AttributeError, TypeError) as error:
        raise TopologyError(
            f"Graph.from_networkx: expected a networkx graph, got {network!r}; for pairs of ranks"
            " there is Graph(size, edges)"
        ) from error
    ranks = {node: plain(node) for node in nodes}
    if not nodes or {*ranks.values()} != {*range(len(nodes))}:
        raise TopologyError(
            f"Graph.from_networkx: nodes must be the ranks 0, 1, ..., got {nodes[:8]!r}; number"
            " them with networkx.convert_node_labels_to_integers"
        )
    found: list[tuple[int, int, SupportsFloat]] = []
    for source, destination, *value in rows:
        if weight is not None and value[0] is None:
            raise TopologyError(
                f"Graph.from_networkx: every edge must have a {weight!r}, got none on"
                f" {source!r}->{destination!r}; set it, or leave weight= out"
            )
        ends = (cast("int", ranks[source]), cast("int", ranks[destination]))
        number = cast("SupportsFloat", value[0]) if value else 0.0
        found.append((*ends, number))
        if not directed and source != destination:
            found.append((*reversed(ends), number))  # type: ignore[arg-type]  # two ends
    # As networkx was filled, so its edges stand: that may differ from rank to rank.
    found.sort(key=lambda edge: (edge[0], edge[1], float(edge[2])))
    edges = tuple((source, destination) for source, destination, _ in found)
    return len(nodes), edges, [w for _, _, w in found] if weight is not None else None


def network_of(graph: Graph) -> MultiDiGraph:
    """Return a graph as networkx has it.

    Raises:
        TopologyError: networkx is not installed.
    """
    try:
        import networkx
    except ImportError as error:
        raise TopologyError(
            "to_networkx: networkx is not installed; pip install networkx"
        ) from error
    weighted = graph.weighted()
    network = networkx.MultiDiGraph()
    for rank, own in enumerate(weighted.self_weights or ()):
        network.add_node(rank, self_weight=own)
    for number, (edge, weight) in enumerate(
        zip(weighted.edges, weighted.weights or (), strict=True)
    ):
        network.add_edge(*edge, key=number, weight=weight)
    return network
