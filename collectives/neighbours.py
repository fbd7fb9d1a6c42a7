"""From an operation over edges to the lanes of this rank; trees by edge and by lane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from torch import Tensor

from .binding import Route
from .discover import refuse_sizes
from .edges import EdgePlan, graph_at, plan_edges
from .errors import ArgumentError
from .routes import Shapes, check_shapes
from .topology import Cartesian, Schedule, Topology

if TYPE_CHECKING:
    from .binding import Binding
    from .context import Placed

__all__ = ["ByEdge", "EdgeRoute", "find_edges", "make_room"]

Trees = tuple[object, ...]

# Of one Exchange: a schedule without a period would fill the cache. One is made in 50 us.
_MOST_ROUTES = 256


class ByEdge:
    """Trees by edge and by lane: the same for a route, and for what stands for one in a graph.

    ``gives`` says for each lane whether what this rank gives goes down it, ``meets`` whether what
    leaves on a lane says what arrives on it.
    """

    __slots__ = ()
    op: str
    gives: tuple[bool, ...]
    meets: bool
    leaving: tuple[int, ...]
    arriving: tuple[int, ...]
    own: float
    weights: tuple[float, ...]

    def to_all(self, tree: object) -> Trees:
        """Return, by lane, one tree for all edges that leave."""
        return tuple(tree if gives else None for gives in self.gives)

    def dealt(self, binding: Placed, trees: Sequence[object]) -> Trees:
        """Return, by lane, one tree for each edge that leaves."""
        return self._by_lane(binding, "trees", trees, self.leaving, "leaves")

    def buffers(self, binding: Placed, out: Sequence[object] | None) -> Trees | None:
        """Return, by lane, the buffers of the edges that arrive."""
        if out is None:
            return None
        self._check_unasked(binding, "out")
        return self._by_lane(binding, "out=", out, self.arriving, "arrives at")

    def expected(
        self, binding: Placed, tree: object, like: Sequence[object] | None
    ) -> Trees | None:
        """Return, by lane, what arrives; ``None`` where each lane says it by what leaves on it.

        Args:
            binding: Of the Exchange.
            tree: What arrives on each edge of a graph.
            like: By edge, instead.
        """
        if like is not None:
            self._check_unasked(binding, "like")
            return self._by_lane(binding, "like=", like, self.arriving, "arrives at")
        if self.meets:
            return None
        arriving = set(self.arriving)
        return tuple(tree if index in arriving else None for index in range(len(self.gives)))

    def in_order(self, arrived: Trees) -> Trees:
        """Return what arrived by edge instead of by lane."""
        return tuple(arrived[lane] for lane in self.arriving)

    def factors(
        self, binding: Placed, weights: Sequence[float] | Tensor | None
    ) -> tuple[float, ...]:
        """Return what is taken of the rank's own, and of each edge that arrives.

        Raises:
            ArgumentError: Not one finite number for each.
        """
        if weights is None:
            return (self.own, *self.weights)
        count = len(self.arriving) + 1
        given: tuple[object, ...] = tuple(
            weights.tolist() if isinstance(weights, Tensor) else weights
        )
        known = [float(w) for w in given if isinstance(w, int | float) and math.isfinite(w)]
        if not len(known) == len(given) == count:
            raise ArgumentError(
                f"{self.op}: weights must be {count} finite numbers {binding.here}, what this"
                f" rank keeps first, then one for each edge that arrives, got {weights!r}"
            )
        return tuple(known)

    def _check_unasked(self, binding: Placed, argument: str) -> None:
        """Refuse an argument that says what arrives, where its sender is asked."""

    def _by_lane(
        self,
        binding: Placed,
        what: str,
        trees: Sequence[object],
        lanes: Sequence[int],
        verb: str,
    ) -> Trees:
        if not isinstance(trees, list | tuple) or len(trees) != len(lanes):
            got = f"{len(trees)}" if isinstance(trees, list | tuple) else type(trees).__name__
            raise ArgumentError(
                f"{self.op}: {what} must be a list with one tree for each edge that {verb} a"
                f" rank {binding.here}: expected {len(lanes)}, got {got}"
            )
        placed: list[object] = [None] * len(self.gives)
        for lane, tree in zip(lanes, trees, strict=True):
            placed[lane] = tree
        return tuple(placed)


@dataclass(slots=True, kw_only=True)
class EdgeRoute(Route, ByEdge):
    """The lanes of an operation over the edges of a topology.

    Args:
        edges: Who stands at their ends.
        topology: Whose edges they are: of a schedule, the graph of the step.
    """

    edges: EdgePlan
    topology: Topology
    op: str = field(init=False)
    gives: tuple[bool, ...] = field(init=False)
    meets: bool = field(init=False)
    leaving: tuple[int, ...] = field(init=False)
    arriving: tuple[int, ...] = field(init=False)
    own: float = field(init=False)
    weights: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        edges = self.edges
        self.op, self.meets = self.plan.op, isinstance(self.topology, Cartesian)
        self.leaving, self.arriving = edges.leaving, edges.arriving
        self.own, self.weights = edges.own, edges.weights
        self.gives = tuple(
            self.meets or lane.source is None or index in edges.leaving
            for index, lane in enumerate(self.plan.lanes)
        )

    def _check_unasked(self, binding: Placed, argument: str) -> None:
        if self.discover:
            refuse_sizes(binding, self.plan, argument)


def find_edges(
    binding: Binding, operation: str, step: int | None, shapes: Shapes = "same", contents: str = ""
) -> EdgeRoute:
    """Return the lanes of an operation over edges.

    Args:
        binding: Of the Exchange.
        operation: Its name.
        step: Which graph of a schedule.
        shapes: As for ``shift``.
        contents: More that all ranks must agree on.

    Raises:
        TopologyError: A schedule without a step, or a step that there is not.
        ArgumentError: A ``shapes`` that there is not.
    """
    topology = binding.topology
    if isinstance(topology, Schedule) and step is not None and topology.period is not None:
        step = step % topology.period if type(step) is int and step >= 0 else step
    elif not isinstance(topology, Schedule):
        step = None
    key = (operation, step, shapes, contents)
    route = binding.routes.get(key)
    if route is None:
        check_shapes(shapes, operation)
        graph = graph_at(operation, topology, step)
        arguments = [contents] if contents else []
        arguments += [] if step is None else [f"step={step}"]
        edges = plan_edges(graph, binding.engine.rank, f"{operation}({', '.join(arguments)})")
        route = EdgeRoute(
            plan=edges.plan,
            discover=shapes != "same",
            once=shapes == "once",
            builds=True,
            edges=edges,
            topology=graph,
        )
        make_room(binding)
        binding.routes[key] = route
    return cast("EdgeRoute", route)


def make_room(binding: Binding) -> None:
    """Forget routes where there are too many."""
    if len(binding.routes) >= _MOST_ROUTES:
        binding.routes.clear()
