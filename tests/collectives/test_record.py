"""A flight record as a file: what is in it comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives import Exchange, Ring
from collectives.errors import ArgumentError
from collectives.record import Entry, FlightRecord, Lane, load, take
from collectives.record.reading import from_json
from collectives.record.values import MOST_ENTRIES, MOST_NUMBER, MOST_TEXT, shortened
from collectives.state import GroupState
from collectives.testing import SimulatedAdapter, simulate
from tests.support.records import done, record, under_way

Facts = dict[str, object]

text = st.text(max_size=20)
numbers = st.integers(0, MOST_NUMBER)
seconds = st.floats(0, 1e12, allow_nan=False)
ends = st.none() | st.integers(0, 4)
lanes = st.builds(Lane, numbers, ends, ends, text, text)
entries = st.builds(
    Entry,
    numbers,
    text,
    text,
    text,
    text,
    text,
    st.lists(st.integers(-MOST_NUMBER, MOST_NUMBER), max_size=3).map(tuple),
    text,
    st.sampled_from(["done", "under way"]),
    st.booleans(),
    seconds,
    seconds,
    st.lists(lanes, max_size=3).map(tuple),
)
records = st.builds(
    FlightRecord,
    st.integers(0, 4),
    st.just(5),
    text,
    st.lists(text, max_size=3).map(tuple),
    text,
    text,
    text,
    numbers,
    st.fixed_dictionaries(dict.fromkeys(["torch-collectives", "torch", "python"], text)),
    seconds,
    text,
    st.lists(entries, max_size=4).map(tuple),
)


@given(records)
def test_a_record_comes_back_as_it_was_written(one: FlightRecord) -> None:
    assert from_json(one.to_json()) == one


@given(st.recursive(st.none() | st.booleans() | st.floats() | text, st.lists) | st.binary())
def test_any_other_json_is_refused(value: object) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value)
    with pytest.raises(ArgumentError, match="expected"):
        from_json(data)


def drop(key: str) -> Callable[[Facts], object]:
    return lambda facts: facts.pop(key)


def put(key: str, value: object) -> Callable[[Facts], object]:
    return lambda facts: facts.update({key: value})


def entry(change: Callable[[Facts], object]) -> Callable[[Facts], object]:
    return lambda facts: change(facts["entries"][1])  # type: ignore[index]


def lane(change: Callable[[Facts], object]) -> Callable[[Facts], object]:
    return entry(lambda facts: change(facts["lanes"][0]))  # type: ignore[index]


CHANGES = {
    "no rank": (drop("rank"), "keys format, rank"),
    "one key more": (put("more", 1), "keys format, rank"),
    "other format": (put("format", "flight record 2"), "format: expected"),
    "rank a text": (put("rank", "0"), r"rank: expected an integer in 0\.\.1, got '0'"),
    "rank a bool": (put("rank", True), "rank: expected an integer"),
    "rank beyond the size": (put("rank", 2), r"rank: expected an integer in 0\.\.1, got 2"),
    "no ranks": (put("size", 0), "size: expected"),
    "negative pid": (put("pid", -1), "pid: expected"),
    "huge text": (put("failure", "x" * (MOST_TEXT + 1)), "failure: expected a text of at most"),
    "time that is no number": (put("written", float("nan")), "written: expected a number"),
    "endless time": (put("written", float("inf")), "written: expected a number"),
    "other versions": (put("versions", {"torch": "2"}), "versions: expected an object"),
    "names a text": (put("names", "kv"), "names: expected a list"),
    "too many entries": (put("entries", [1] * 65), "entries: expected a list of at most 64"),
    "entries of another kind": (put("entries", [1]), r"entries\[0\]: expected an object"),
    "unknown state": (entry(put("state", "lost")), r"entries\[1\]\.state: expected 'done' or"),
    "waited a number": (entry(put("waited", 1)), r"entries\[1\]\.waited: expected true or false"),
    "step a text": (entry(put("step", ["1"])), r"entries\[1\]\.step\[0\]: expected an integer"),
    "peer beyond the size": (lane(put("source", 9)), r"entries\[1\]\.lanes\[0\]\.source: expected"),
    "lane without key": (lane(drop("key")), r"entries\[1\]\.lanes\[0\]: expected an object"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_refused_by_its_name_and_what_is_wrong(name: str, tmp_path: Path) -> None:
    change, pattern = CHANGES[name]
    path = record(0, 2, [done(0, 2, 1), under_way(0, 2, 2)]).save(tmp_path)
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(ArgumentError, match=pattern) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))


def test_files_that_hold_no_json_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b" " * (16 * 2**20 + 1)):
        path = tmp_path / "some.json"
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"some\.json: "):
            load(path)


def test_a_file_is_replaced_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    first, second = record(1, 2, []), record(1, 2, [done(1, 2, 1)])
    path = first.save(folder)
    assert second.save(str(folder)) == path
    assert load(path) == second
    assert [p.name for p in folder.iterdir()] == ["default-rank1.json"]


def test_a_group_with_a_strange_name_stays_in_its_folder(tmp_path: Path) -> None:
    facts = json.loads(record(0, 1, []).to_json())
    strange = from_json(json.dumps({**facts, "group": "../a b/" + "c" * 500}))
    assert strange.save(tmp_path).parent == tmp_path
    assert load(next(tmp_path.iterdir())) == strange


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "default-rank0.json").mkdir()
    with pytest.raises(OSError, match="default-rank0"):
        record(0, 1, []).save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["default-rank0.json"]


def test_long_texts_are_cut_and_still_differ() -> None:
    one, other = shortened("a" * 5000), shortened("a" * 4999 + "b")
    assert len(one) == len(other) == MOST_TEXT
    assert one != other
    assert shortened("short") == "short"


def test_what_a_group_remembers_is_bounded_whatever_was_exchanged() -> None:
    def program(adapter: SimulatedAdapter) -> FlightRecord:
        exchange = Exchange(Ring, adapter, name="n" * 1000)
        exchange.mark_step(*range(100), 10**30)
        with torch.no_grad():
            for _ in range(70):
                exchange.shift([torch.ones(1)] * 300)
        return exchange.flight_record()

    for one in simulate(2, program):
        assert len(one.entries) == MOST_ENTRIES
        assert one.entries[-1].sequence == 70
        assert len(one.to_json()) < 64 * 5000
        assert from_json(one.to_json()) == one


def test_a_record_says_what_travelled_and_never_the_values() -> None:
    def program(adapter: SimulatedAdapter) -> FlightRecord:
        exchange = Exchange(Ring(3, periodic=False), adapter, name="kv")
        exchange.mark_step(2, 7)
        x = torch.full((2, 3), 123.456, requires_grad=True)
        exchange.join(exchange.shift([x, torch.ones(1, dtype=torch.int8)])[0].sum()).backward()
        return exchange.flight_record()

    records_ = simulate(3, program)
    assert "123.4" not in "".join(one.to_json() for one in records_)
    forward, backward = records_[0].entries
    assert (forward.sequence, forward.phase, forward.name) == (1, "forward", "kv")
    assert (forward.op, forward.grad, forward.step) == (
        "shift(offset=1, axis='ring')",
        "grad",
        (2, 7),
    )
    assert forward.lanes == (Lane(0, 1, None, "float32[2, 3], int8[1]", "float32[2, 3], int8[1]"),)
    assert backward.lanes == (Lane(0, None, 1, "float32[2, 3]", "float32[2, 3]"),)
    assert str(backward) == "#1 backward of shift(offset=1, axis='ring') of 'kv'"
    for rank, one in enumerate(records_):
        assert (one.rank, one.size, one.group, one.names) == (rank, 3, "simulation", ("kv",))
        assert one.topology == "Ring(3, periodic=False)"
        assert one.versions["torch"] == torch.__version__
        assert one.failure == ""
        assert one.waiting is None
        assert all(e.state == "done" and e.ended <= one.written + 1e-3 for e in one.entries)


def test_a_group_without_any_exchange_has_an_empty_record() -> None:
    empty = take(GroupState(), rank=0, size=2, group="default", failure="none came")
    assert (empty.entries, empty.names, empty.topology) == ((), (), "")
    assert (empty.failure, empty.last_done, empty.waiting) == ("none came", None, None)
