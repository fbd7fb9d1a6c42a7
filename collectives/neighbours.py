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

__all__ = ["EdgeRoute", "find_edges", "make_room"]

Trees = tuple[object, ...]

# Of one Exchange: a schedule without a period would fill the cache. One is made in 50 us.
_MOST_ROUTES = 256


@dataclass(slots=True, kw_only=True)
class EdgeRoute(Route):
    """The lanes of an operation over the edges of a topology.

    Args:
        edges: Who stands at their ends.
        topology: Whose edges they are: of a schedule, the graph of the step.
        gives: For each lane, whether what this rank gives goes down it.
    """

    edges: EdgePlan
    topology: Topology
    gives: tuple[bool, ...] = field(init=False)

    def __post_init__(self) -> None:
        lanes = self.plan.lanes
        self.gives = tuple(
            isinstance(self.topology, Cartesian)
            or lane.source is None
            or index in self.edges.leaving
            for index, lane in enumerate(lanes)
        )

    def to_all(self, tree: object) -> Trees:
        """Return, by lane, one tree for all edges that leave."""
        return tuple(tree if gives else None for gives in self.gives)

    def dealt(self, binding: Binding, trees: Sequence[object]) -> Trees:
        """Return, by lane, one tree for each edge that leaves."""
        return self._by_lane(binding, "trees", trees, self.edges.leaving, "leaves")

    def buffers(self, binding: Binding, out: Sequence[object] | None) -> Trees | None:
        """Return, by lane, the buffers of the edges that arrive."""
        if out is None:
            return None
        if self.discover:
            refuse_sizes(binding, self.plan, "out")
        return self._by_lane(binding, "out=", out, self.edges.arriving, "arrives at")

    def expected(
        self, binding: Binding, tree: object, like: Sequence[object] | None
    ) -> Trees | None:
        """Return, by lane, what arrives; ``None`` where each lane says it by what leaves on it.

        Args:
            binding: Of the Exchange.
            tree: What arrives on each edge of a graph.
            like: By edge, instead.
        """
        if like is not None:
            if self.discover:
                refuse_sizes(binding, self.plan, "like")
            return self._by_lane(binding, "like=", like, self.edges.arriving, "arrives at")
        if isinstance(self.topology, Cartesian):
            return None
        arriving = set(self.edges.arriving)
        return tuple(tree if index in arriving else None for index in range(len(self.gives)))

    def in_order(self, arrived: Trees) -> Trees:
        """Return what arrived by edge instead of by lane."""
        return tuple(arrived[lane] for lane in self.edges.arriving)

    def factors(
        self, binding: Binding, weights: Sequence[float] | Tensor | None
    ) -> tuple[float, ...]:
        """Return what is taken of the rank's own, and of each edge that arrives.

        Raises:
            ArgumentError: Not one finite number for each.
        """
        if weights is None:
            return (self.edges.own, *self.edges.weights)
        count = len(self.edges.arriving) + 1
        given: tuple[object, ...] = tuple(
            weights.tolist() if isinstance(weights, Tensor) else weights
        )
        known = [float(w) for w in given if isinstance(w, int | float) and math.isfinite(w)]
        if not len(known) == len(given) == count:
            raise ArgumentError(
                f"{self.plan.op}: weights must be {count} finite numbers {binding.here}, what this"
                f" rank keeps first, then one for each edge that arrives, got {weights!r}"
            )
        return tuple(known)

    def _by_lane(
        self,
        binding: Binding,
        what: str,
        trees: Sequence[object],
        lanes: Sequence[int],
        verb: str,
    ) -> Trees:
        if not isinstance(trees, list | tuple) or len(trees) != len(lanes):
            got = f"{len(trees)}" if isinstance(trees, list | tuple) else type(trees).__name__
            raise ArgumentError(
                f"{self.plan.op}: {what} must be a list with one tree for each edge that {verb} a"
                f" rank {binding.here}: expected {len(lanes)}, got {got}"
            )
        placed: list[object] = [None] * len(self.gives)
        for lane, tree in zip(lanes, trees, strict=True):
            placed[lane] = tree
        return tuple(placed)


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
