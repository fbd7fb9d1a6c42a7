"""One trace of two ranks: whose events are whose, on one clock, and what is on its way when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch.distributed as dist

from collectives.testing.pool import RankPool
from examples.timeline import ON_ITS_WAY, Event, Trace, merge, plot_timeline
from examples.trace import STEPS, record

HOP = "collectives::ring_pass[axis=ring] texts"


def recorded(folder: Path) -> None:
    record(dist.get_rank(), dist.get_world_size(), 16, folder)


@pytest.fixture(scope="module")
def merged(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("traces")
    rank_pool.run(recorded, folder, size=2)
    texts = [(folder / f"{rank}.json").read_text() for rank in range(2)]
    traces = merge([cast("Trace", json.loads(text)) for text in texts])
    return cast("Trace", json.loads(json.dumps(traces)))  # as it stands in a file


def of(trace: Trace, rank: int, name: str) -> list[Event]:
    found = [e for e in trace["traceEvents"] if e.get("pid") == rank and e["name"] == name]
    return sorted(found, key=lambda event: event["ts"])


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_is_a_process_that_has_its_name(merged: Trace, rank: int) -> None:
    (name,) = of(merged, rank, "process_name")
    assert name["args"] == {"name": f"rank {rank}"}
    assert {event["pid"] for event in merged["traceEvents"]} == {0, 1}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_own_block_is_computed_while_the_next_one_is_on_its_way(
    merged: Trace, rank: int
) -> None:
    hops = [event for event in of(merged, rank, HOP) if event["tid"] == ON_ITS_WAY]
    own = of(merged, rank, f"block of rank {rank}")
    other = of(merged, rank, f"block of rank {1 - rank}")
    assert len(hops) == len(own) == len(other) == STEPS
    for hop, first, second in zip(hops, own, other, strict=True):
        landed = hop["ts"] + hop["dur"]
        assert hop["ts"] < first["ts"]
        assert first["ts"] + first["dur"] < landed <= second["ts"]


@pytest.mark.parametrize("rank", [0, 1])
def test_backward_has_hops_of_its_own_inside_its_range(merged: Trace, rank: int) -> None:
    for backward, hop in zip(
        of(merged, rank, "backward"), of(merged, rank, f"{HOP} backward"), strict=True
    ):
        assert backward["ts"] < hop["ts"]
        assert hop["ts"] + hop["dur"] < backward["ts"] + backward["dur"]


def test_both_ranks_are_on_one_clock_that_starts_at_zero(merged: Trace) -> None:
    times = [event["ts"] for event in merged["traceEvents"] if event["ph"] != "M"]
    assert min(times) == pytest.approx(0, abs=1e-2)
    # A message that has landed here was posted there before.
    for rank in (0, 1):
        landed = [event["ts"] + event["dur"] for event in of(merged, rank, f"{HOP} wait")]
        posted = [event["ts"] for event in of(merged, 1 - rank, f"{HOP} post")]
        assert all(there < here for there, here in zip(posted, landed, strict=True))


def test_arrows_of_two_ranks_are_not_mixed_up(merged: Trace) -> None:
    arrows = [event for event in merged["traceEvents"] if "id" in event]
    assert arrows
    assert all(str(event["id"]).startswith(f"{event['pid']}.") for event in arrows)


def test_clocks_that_count_from_different_moments_are_aligned() -> None:
    def trace(base: int, ts: float) -> Trace:
        event: Event = {"ph": "X", "name": "x", "pid": 77, "tid": 77, "ts": ts, "dur": 1.0}
        return {"baseTimeNanoseconds": base, "traceEvents": [event]}

    both = merge([trace(5_000_000, 10.0), trace(4_000_000, 1_030.0)])
    assert [event["ts"] for event in both["traceEvents"] if event["name"] == "x"] == [0.0, 20.0]


def test_the_timeline_is_drawn(merged: Trace, tmp_path: Path) -> None:
    assert plot_timeline(merged, tmp_path).read_bytes().startswith(b"\x89PNG")
