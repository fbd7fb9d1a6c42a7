"""Schedules: graphs that change with the step."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives.errors import TopologyError
from collectives.topology import Graph, Mesh, Ring, Schedule

SCHEDULES = [
    Schedule.cycle([Graph.star(4), Graph.hypercube(4), Ring(4)]),
    Schedule.one_peer_exponential(1),
    Schedule.one_peer_exponential(6),
    Schedule.random_matching(5, seed=7),
    Schedule.axis_by_axis(Mesh((2, 3))),
]
LOOSE: Any = SCHEDULES[3]
NAMES = {"Schedule": Schedule, "Graph": Graph}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_values(schedule: Schedule) -> None:
    copies = [
        eval(repr(schedule), NAMES),
        pickle.loads(pickle.dumps(schedule)),
        copy.deepcopy(schedule),
    ]
    for other in copies:
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert [other[step] for step in range(9)] == [schedule[step] for step in range(9)]
    assert schedule != Schedule.one_peer_exponential(7)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_every_step_keeps_the_mean_and_is_reversed_as_a_graph(schedule: Schedule) -> None:
    back = schedule.reverse()
    for step in range(8):
        graph = schedule[step]
        assert graph.is_doubly_stochastic()
        assert (back[step].mixing_matrix() == graph.mixing_matrix().T).all()
    if schedule.period is not None:
        assert schedule[schedule.period + 1] == schedule[1]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_one_peer_exponential_averages_exactly_where_the_size_is_a_power_of_two(size: int) -> None:
    schedule = Schedule.one_peer_exponential(size)
    assert schedule.period == max(1, size.bit_length() - 1)
    assert (schedule.mixing_matrix() == 1 / size).all()
    assert schedule.spectral_gap() == 1.0


@pytest.mark.parametrize("size", [3, 5, 6, 12])
def test_one_peer_exponential_sends_one_message_per_rank_and_step(size: int) -> None:
    schedule = Schedule.one_peer_exponential(size)
    for step in range(5):
        assert Counter(s for s, _ in schedule[step].edges) == Counter(range(size))
        assert Counter(d for _, d in schedule[step].edges) == Counter(range(size))
    assert 0 < schedule.spectral_gap() < 1


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_a_random_matching_pairs_every_rank_at_most_once(size: int) -> None:
    schedule = Schedule.random_matching(size, seed=0)
    for step in range(20):
        edges = schedule[step].edges
        assert len(edges) == size // 2 * 2
        assert all((b, a) in edges and a != b for a, b in edges)
        assert len({a for a, _ in edges}) == len(edges)


def test_random_matchings_follow_from_seed_and_step_alone() -> None:
    one, other = Schedule.random_matching(8, seed=1), Schedule.random_matching(8, seed=2)
    assert one[5].edges == ((1, 5), (5, 1), (2, 7), (7, 2), (3, 4), (4, 3), (6, 0), (0, 6))
    assert one[5] == Schedule.random_matching(8, 1)[5]
    assert one != other
    assert len({one[step] for step in range(30)}) > 20
    assert one[3] != other[3]


def test_axis_by_axis_averages_over_all_ranks_in_as_many_steps_as_axes() -> None:
    mesh = Mesh((2, 3, 2), axes=("host", "card", "die"))
    schedule = Schedule.axis_by_axis(mesh)
    assert schedule.period == 3
    np.testing.assert_allclose(schedule.mixing_matrix(), 1 / 12, atol=1e-15)
    assert all(mesh.coords(s)[:2] == mesh.coords(d)[:2] for s, d in schedule[0].edges)
    by_rings = Schedule.axis_by_axis(mesh, Ring)
    assert 0 < by_rings.spectral_gap() < 1


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: Schedule.cycle([]), "expected at least one Graph"),
        (lambda: Schedule.cycle([SCHEDULES[0]]), "expected at least one Graph"),
        (lambda: Schedule.cycle([Ring(2), Ring(3)]), r"one size, got sizes \[2, 3\]"),
        (lambda: SCHEDULES[0][-1], "step must be at least 0, got -1"),
        (lambda: LOOSE[1.5], "step must be an int"),
        (SCHEDULES[3].mixing_matrix, "never begins again"),
        (SCHEDULES[0].to_networkx, r"take schedule\[step\]"),
        (lambda: SCHEDULES[0].axis_index("x"), "a Schedule has no axes"),
    ],
)
def test_what_makes_no_schedule_is_refused(use: Callable[[], object], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        use()


def test_a_schedule_is_not_iterated_over_since_it_has_no_end() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(LOOSE)
    with pytest.raises(TypeError):
        Graph(4, ()) in LOOSE  # noqa: B015 - it would search for ever
