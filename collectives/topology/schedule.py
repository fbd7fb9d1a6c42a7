"""Schedule: a graph for each step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn, SupportsIndex

from ..errors import TopologyError
from . import mixing
from .arguments import integer, ordered, positive
from .base import Topology
from .families import hops
from .graph import Graph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .cartesian import Cartesian

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(Topology):
    """Ranks whose edges change with the step: ``schedule[step]`` is a :class:`Graph`.

    Make one with :meth:`cycle`, :meth:`one_peer_exponential`, :meth:`random_matching` or
    :meth:`axis_by_axis`.

    Example:
        >>> schedule = Schedule.one_peer_exponential(4)
        >>> schedule[0].destinations(0), schedule[1].destinations(0), schedule[2].destinations(0)
        ((1,), (2,), (1,))
        >>> schedule.mixing_matrix()[0].tolist(), schedule.spectral_gap()
        ([0.25, 0.25, 0.25, 0.25], 1.0)
    """

    __iter__ = None  # it never ends: Python would count up for ever

    @staticmethod
    def cycle(topologies: Sequence[Topology]) -> Schedule:
        """Return the schedule that goes through some topologies, again and again.

        Args:
            topologies: Graphs, meshes or rings of one size, at least one.

        Raises:
            TopologyError: None, of several sizes, or something else.
        """
        given: tuple[object, ...] = ordered("Schedule.cycle", "topologies", topologies)
        graphs = [
            topology.to_graph()
            for topology in given
            if isinstance(topology, Topology) and not isinstance(topology, Schedule)
        ]
        if not graphs or len(graphs) != len(given):
            raise TopologyError(
                f"Schedule.cycle: expected at least one Graph, Mesh or Ring, got {given!r}"
            )
        sizes = sorted({graph.size for graph in graphs})
        if len(sizes) > 1:
            raise TopologyError(
                f"Schedule.cycle: all topologies must have one size, got sizes {sizes}"
            )
        return _Cycle(sizes[0], tuple(graphs))

    @staticmethod
    def one_peer_exponential(size: SupportsIndex) -> Schedule:
        """Return the schedule of one message per rank and step: to rank + 1, + 2, + 4, ...

        Each rank takes half of what arrives. Where ``size`` is a power of two, log2(size) steps
        give all ranks exactly the average.

        Source: Assran et al., "Stochastic Gradient Push", 2019; Ying et al., 2021.
        """
        ranks = positive("Schedule.one_peer_exponential", "size", size)
        steps = [
            tuple((rank, (rank + hop) % ranks) for rank in range(ranks)) for hop in hops(ranks)
        ]
        half = [0.5] * ranks
        graphs = tuple(Graph(ranks, edges, half, half) for edges in steps)
        made = f"Schedule.one_peer_exponential({ranks})"
        return _Cycle(ranks, graphs or (Graph(ranks, (), ()),), made)

    @staticmethod
    def random_matching(size: SupportsIndex, seed: SupportsIndex) -> Schedule:
        """Return the schedule that pairs ranks at random; each pair averages.

        The pairs follow from seed and step alone, alike on every machine. Where ``size`` is odd one
        rank has no peer.

        Source: Boyd et al., "Randomized Gossip Algorithms", 2006, with all pairs at once.
        """
        ranks = positive("Schedule.random_matching", "size", size)
        return _Matching(ranks, integer("Schedule.random_matching", "seed", seed))

    @staticmethod
    def axis_by_axis(mesh: Cartesian, make: Callable[[int], Topology] = Graph.complete) -> Schedule:
        """Return the schedule that averages along the last axis of a mesh, then the one before, ...

        With ``Graph.complete`` all ranks have the average after as many steps as there are axes:
        hierarchical averaging, within hosts first and between hosts then.

        Args:
            mesh: A Mesh or Ring.
            make: From the extent of an axis to the graph along it.

        Example:
            >>> hosts = Mesh((2, 4), axes=("host", "device"))
            >>> Schedule.axis_by_axis(hosts).spectral_gap()
            1.0

        Source: BlueFog's hierarchical averaging.
        """
        axes = reversed(range(len(mesh.shape)))
        return Schedule.cycle([Graph.along(mesh, axis, make) for axis in axes])

    @abstractmethod
    def __getitem__(self, step: SupportsIndex) -> Graph:
        """Return the graph of a step, counted from 0.

        Raises:
            TopologyError: ``step`` is negative, or not an int.
        """

    @property
    @abstractmethod
    def period(self) -> int | None:
        """After how many steps it begins again; ``None``: never."""

    @abstractmethod
    def reverse(self) -> Schedule:
        """Return the schedule of the reversed graphs, step by step."""

    @abstractmethod
    def mixing_matrix(self) -> NDArray[np.float64]:
        """Return what all steps of one period do together, the first one first.

        Raises:
            TopologyError: It never begins again; ``schedule[step]`` has a matrix.
        """

    def to_graph(self) -> NoReturn:
        """Raise: a schedule has a graph for each step.

        Raises:
            TopologyError: Always.
        """
        raise TopologyError(f"{self!r} has a graph for each step: take schedule[step]")

    def axis_index(self, axis: str | int | None, operation: str = "axis_index") -> NoReturn:
        """Raise: a schedule has no axes.

        Raises:
            TopologyError: Always; the text says what works instead.
        """
        raise TopologyError(
            f"{operation}: a Schedule has no axes: expected a Ring or a Mesh, got {self!r}"
            f" (axis={axis!r}); over a Schedule there are gossip_, neighbor_allreduce and permute"
        )


@dataclass(frozen=True, slots=True, repr=False)
class _Cycle(Schedule):
    """Some graphs, again and again."""

    graphs: tuple[Graph, ...]
    _made: str = ""

    @property
    def period(self) -> int:
        return len(self.graphs)

    def __getitem__(self, step: SupportsIndex) -> Graph:
        return self.graphs[_step(step) % len(self.graphs)]

    def reverse(self) -> Schedule:
        return _Cycle(self.size, tuple(graph.reverse() for graph in self.graphs))

    def mixing_matrix(self) -> NDArray[np.float64]:
        return mixing.product_of([graph.mixing_matrix() for graph in self.graphs])

    def __repr__(self) -> str:
        return self._made or f"Schedule.cycle({list(self.graphs)!r})"


@dataclass(frozen=True, slots=True, repr=False)
class _Matching(Schedule):
    """Other pairs at every step."""

    seed: int

    @property
    def period(self) -> None:
        return None

    def __getitem__(self, step: SupportsIndex) -> Graph:
        key = f"{self.seed} {_step(step)}"
        # By digests: what Python's generators draw may change from version to version.
        order = sorted(range(self.size), key=lambda rank: sha256(f"{key} {rank}".encode()).digest())
        pairs = list(zip(order[::2], order[1::2], strict=False))
        edges = [edge for a, b in pairs for edge in ((a, b), (b, a))]
        return Graph(self.size, edges, [0.5] * len(edges))

    def reverse(self) -> Schedule:
        return self

    def mixing_matrix(self) -> NoReturn:
        raise TopologyError(
            f"{self!r} never begins again: it has no mixing matrix; take that of schedule[step]"
        )

    def __repr__(self) -> str:
        return f"Schedule.random_matching({self.size}, seed={self.seed})"


def _step(step: object) -> int:
    number = integer("Schedule", "step", step)
    if number < 0:
        raise TopologyError(f"Schedule: step must be at least 0, got {number}")
    return number
