"""Who sends what to whom along a line: the plans of all ranks together, none of them started."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collectives import Graph, Mesh, Ring
from collectives.errors import TopologyError
from collectives.line import Line, line_of, shares
from collectives.plan import Plan, Send, check_plans
from collectives.topology import Topology

LINES: list[tuple[Topology, str | None]] = [
    *((Ring(size), None) for size in range(1, 9)),
    (Graph(4, []), None),
    (Mesh((2, 3), axes=("y", "x")), None),
    (Mesh((2, 3), axes=("y", "x")), "y"),
    (Mesh((3, 4, 2), axes=("z", "y", "x"), periodic=(True, False, True)), "y"),
    (Mesh((1, 1, 2), axes=("z", "y", "x")), "z"),
]
WAYS: list[Callable[[Line], Plan]] = [
    lambda line: line.to_each("each"),
    lambda line: line.to_next("next"),
    lambda line: line.from_one("first", 0),
    lambda line: line.from_one("last", len(line) - 1),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("topology", "axis"), LINES, ids=str)
def test_the_plans_of_all_ranks_fit_together_and_so_do_their_adjoints(
    topology: Topology, axis: str | None, way: Callable[[Line], Plan]
) -> None:
    lines = [line_of(topology, rank, axis, "op") for rank in range(topology.size)]
    plans = [way(line) for line in lines]
    check_plans(plans)
    check_plans(plan.reverse() for plan in plans)
    assert all(list(p.lanes) == sorted(p.lanes, key=lambda lane: lane.key) for p in plans)
    for line, plan in zip(lines, plans, strict=True):
        assert line.ranks[line.position] == plan.rank
        assert {lane.source for lane in plan.lanes} <= {None, *line.ranks}


def test_every_rank_speaks_once_to_every_other_of_its_line() -> None:
    mesh = Mesh((3, 2), axes=("y", "x"))
    plan = line_of(mesh, 3, "y", "op").to_each("op")
    assert [step.peer for step in plan.steps if isinstance(step, Send)] == [1, 5]


def test_what_is_left_over_goes_to_the_first() -> None:
    assert shares(11, 4) == [3, 3, 3, 2]
    assert shares(2, 3) == [1, 1, 0]
    assert shares(0, 2) == [0, 0]


def test_a_graph_has_no_lines_along_an_axis() -> None:
    with pytest.raises(TopologyError, match="all_gather: a Graph has no axes"):
        line_of(Graph(2, [(0, 1)]), 0, "x", "all_gather")
