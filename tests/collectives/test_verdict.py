"""What the records of all ranks prove together: pure functions over records made by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.record import FlightRecord, table, verdict
from collectives.record.line import lay
from collectives.record.words import moment, ranks_in_words
from tests.support.records import NOON, done, record, under_way


def history(rank: int, size: int, first: int, last: int) -> list[FlightRecord]:
    return [record(rank, size, [done(rank, size, n) for n in range(first, last + 1)])]


def agreed(size: int) -> list[FlightRecord]:
    return [one for rank in range(size) for one in history(rank, size, 1, 3)]


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_ranks_that_agree_are_said_to_agree(size: int) -> None:
    assert verdict(agreed(size)) == [
        "All ranks agree, and none waits; the last exchange is #3 shift(offset=1, axis='ring') of"
        " 'kv'."
    ]


def test_the_first_difference_is_named_with_what_the_others_ran() -> None:
    records = [
        record(r, 4, [done(r, 4, 4), under_way(r, 4, 5, name="v" if r == 2 else "kv")])
        for r in range(4)
    ]
    first, *rest = verdict(records)
    assert first == (
        "Rank 2 ran exchange #5 shift(offset=1, axis='ring') of 'v' where ranks 0, 1 and 3 ran #5"
        " shift(offset=1, axis='ring') of 'kv': differs in name."
    )
    assert rest == []


def test_what_follows_from_the_first_difference_is_not_said() -> None:
    records = [
        record(r, 2, [done(r, 2, 1, name="ab"[r]), done(r, 2, 2, name="cd"[r])]) for r in range(2)
    ]
    (only,) = verdict(records)
    assert "#1" in only
    assert "#2" not in only


def test_another_phase_is_a_difference_although_the_numbers_differ() -> None:
    mine = [done(0, 2, 1), done(0, 2, 2), done(0, 2, 2, phase="backward")]
    theirs = [done(1, 2, 1), done(1, 2, 2), done(1, 2, 3)]
    first, *_ = verdict([record(0, 2, mine), record(1, 2, theirs)])
    assert first.startswith("Rank 1 ran exchange #3 shift")
    assert "rank 0 ran #2 backward of shift" in first
    assert "sequence, phase" in first


def test_shapes_are_compared_between_the_two_ends_of_a_lane() -> None:
    records = [
        record(0, 2, [under_way(0, 2, 1, shape=7)]),
        record(1, 2, [under_way(1, 2, 1, shape=2)]),
    ]
    sentences = verdict(records)
    assert (
        "In exchange #1 shift(offset=1, axis='ring') of 'kv' rank 0 sends float32[7] on lane 0 to"
        " rank 1, which awaits float32[2]." in sentences
    )


def test_uneven_shapes_that_both_ends_expect_are_no_difference() -> None:
    records = [record(r, 3, [done(r, 3, 1, shape=r + 1, awaits=(r - 1) % 3 + 1)]) for r in range(3)]
    assert verdict(records)[0].startswith("All ranks agree")


def test_a_rank_that_is_behind_is_named_with_those_that_wait_for_it() -> None:
    records = [record(r, 4, [done(r, 4, 4), under_way(r, 4, 5)]) for r in range(3)]
    records.append(record(3, 4, [done(3, 4, 4)], failure="ValueError: no such file"))
    first, failed = verdict(records)
    assert first == (
        "Rank 3 finished #4 and did not start #5 shift(offset=1, axis='ring') of 'kv', where others"
        " wait for it: rank 0 awaits float32[4] from rank 3 on lane 0; rank 2 sends float32[4] to"
        " rank 3 on lane 0."
    )
    assert failed.startswith("Rank 3 failed first")
    assert "no such file" in failed


def test_a_rank_that_waits_itself_is_not_blamed() -> None:
    """Rank 1 waits in #4 for rank 0, which is the one to look at."""
    records = [
        record(0, 3, [done(0, 3, 3)]),
        record(1, 3, [done(1, 3, 3), under_way(1, 3, 4)]),
        record(2, 3, [done(2, 3, 3), done(2, 3, 4), under_way(2, 3, 5)]),
    ]
    first, *rest = verdict(records)
    assert first.startswith("Rank 0 finished #3 and did not start #4")
    assert not any("did not start" in sentence for sentence in rest)


def test_a_rank_that_never_began_has_finished_no_exchange() -> None:
    records = [record(0, 2, [under_way(0, 2, 1)]), record(1, 2, [])]
    assert verdict(records)[0].startswith("Rank 1 has finished no exchange and did not start #1")


def test_ranks_without_a_file_are_named_with_those_that_wait_for_them() -> None:
    records = [record(r, 4, [done(r, 4, 1), under_way(r, 4, 2)]) for r in (0, 1, 2)]
    (only,) = verdict(records)
    assert only.startswith("There is no file of rank 3, for which ranks 0 and 2 wait: killed")


def test_ranks_that_all_wait_in_one_exchange_point_to_the_network() -> None:
    records = [record(r, 2, [done(r, 2, 1), under_way(r, 2, 2)]) for r in range(2)]
    (only,) = verdict(records)
    assert only.startswith("All ranks wait in exchange #2")
    assert "network" in only


def test_a_clock_that_is_ahead_is_proved_by_what_arrived_before_it_was_sent() -> None:
    records = [
        record(0, 2, [done(0, 2, n) for n in (1, 2)], host="a"),
        record(1, 2, [done(1, 2, n, late=60) for n in (1, 2)], host="b", written=NOON + 160),
    ]
    assert verdict(records)[-1].startswith(
        "The clock of rank 1 (b) is ahead of that of rank 0 (a) by 59.5 s or more"
    )


def test_a_slow_rank_is_no_wrong_clock() -> None:
    slow = done(1, 2, 1, late=0.4)
    assert len(verdict([record(0, 2, [done(0, 2, 1)]), record(1, 2, [slow])])) == 1


def test_files_of_different_runs_are_doubted() -> None:
    old = record(1, 2, [], written=NOON - 1000)
    new = record(0, 2, [done(0, 2, 1)])
    other_size = record(1, 3, [done(1, 3, 1)], written=NOON + 50)
    sentences = verdict([new, old, other_size])
    assert any("several files of rank 1" in s for s in sentences)
    assert any("differ in size: 2 on rank 0; 3 on rank 1" in s for s in sentences)
    assert any("earlier run" in s for s in verdict([new, old]))


def test_no_record_at_all_is_said() -> None:
    assert verdict([]) == ["There is no record."]
    assert table([]) == ""


@given(st.integers(0, 40), st.integers(0, 40))
def test_records_that_begin_at_different_exchanges_are_laid_side_by_side(a: int, b: int) -> None:
    """Full records have forgotten what came before, not equally much on all ranks."""
    ends = (64 + a, 64 + b)
    records = [history(rank, 2, end - 63, end)[0] for rank, end in enumerate(ends)]
    line = lay(records)
    assert line.strangers == []
    for entries in line.positions:
        assert len({entry.sequence for entry in entries.values()}) == 1
    assert len(line.positions) == 64 + abs(a - b)


def test_records_with_nothing_in_common_are_said_to_be_strangers() -> None:
    records = [history(0, 2, 1, 64)[0], history(1, 2, 500, 563)[0]]
    assert lay(records).strangers == [1]
    assert any("no exchange in common" in sentence for sentence in verdict(records))


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_table_is_aligned_and_has_a_line_per_rank(size: int) -> None:
    records = [record(r, size, [done(r, size, 9), under_way(r, size, 10)]) for r in range(size)]
    head, rule, *lines = table(records).splitlines()
    assert len(lines) == size
    starts = [i for i, letter in enumerate(rule) if letter == "-" and rule[i - 1 : i] != "-"]
    assert head.split("  ")[0] == "rank"
    assert all(line[i - 1] == " " and line[i] != " " for line in lines for i in starts if i)
    assert lines[0].startswith("0     #9 shift of 'kv'  #10 shift of 'kv'")
    assert all(len(line) < 120 for line in lines)


def test_the_table_shows_hosts_missing_ranks_failures_and_started_exchanges() -> None:
    started = dataclasses.replace(under_way(1, 4, 2), waited=False)
    shown = table(
        [
            record(0, 4, [], host="a", failure="exchange #1 shift(offset=1) (grad): no answer"),
            record(1, 4, [started], host="b"),
        ]
    )
    assert "host" in shown
    assert "  no answer" in shown
    assert "#2 shift of 'kv' (started)" in shown
    assert "2 and 3" in shown
    assert "(no file)" in shown


@given(st.sets(st.integers(0, 30), min_size=1))
def test_ranks_in_words_can_be_read_back(ranks: set[int]) -> None:
    words = ranks_in_words(ranks).removeprefix("ranks ").removeprefix("rank ")
    read: set[int] = set()
    for part in words.replace(" and ", ", ").split(", "):
        low, _, high = part.partition("..")
        read |= set(range(int(low), int(high or low) + 1))
    assert read == ranks


def test_a_clock_that_is_far_off_is_shown_as_a_number() -> None:
    assert moment(1e300) == "1e+300"
