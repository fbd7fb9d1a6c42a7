"""The README's table "Where it runs" says what the tests of tests/matrix show, cell by cell.

A test there names its cells by ``@pytest.mark.cell(feature, runtime)``. A new feature is a new row
of the README: the failing test below prints it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from collectives.testing.pool import RankPool

ROOT = Path(__file__).parents[1]
RUNTIMES = ("lightning", "fabric", "raw")
ABSENT = "\N{EN DASH}"  # the runtime has no such feature, so no test either
REFUSED = re.compile(r'no: [^"]+, "([^"]+)"')  # who refuses, and the error that a user gets
CELL = re.compile(rf"yes|{REFUSED.pattern}|{ABSENT}")

Cell = tuple[str, str]


class Marked(NamedTuple):
    test: str
    cells: list[Cell]


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    text = (ROOT / "README.md").read_text()
    section = text.partition("\n## Where it runs\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def said() -> set[Cell]:
    return {
        (feature, runtime)
        for feature, *cells in rows()
        for runtime, cell in zip(RUNTIMES, cells, strict=True)
        if cell != ABSENT
    }


def collected() -> list[Marked]:
    """Collect tests/matrix as pytest does, so that marks of parameters are seen; on a rank."""

    class Collector:
        def pytest_itemcollected(self, item: pytest.Item) -> None:
            cells = [mark.args for mark in item.iter_markers("cell")]
            found.append(Marked(item.nodeid, [(str(c[0]), str(c[1])) for c in cells]))

    found: list[Marked] = []
    command = ["--collect-only", "-qq", "-m", "", f"--rootdir={ROOT}", str(ROOT / "tests/matrix")]
    command.append("--assert=plain")  # modules that the rank has imported cannot be rewritten
    assert pytest.main(command, plugins=[Collector()]) == pytest.ExitCode.OK
    return found


@pytest.fixture(scope="module")
def marked(rank_pool: RankPool) -> list[Marked]:
    (found,) = rank_pool.run(collected, size=1, backend=None, timeout=60)
    return found


def row_of(feature: str, cells: set[Cell]) -> str:
    words = ["yes" if (feature, runtime) in cells else ABSENT for runtime in RUNTIMES]
    return f"| {' | '.join([feature, *words])} |"


def test_every_test_of_the_matrix_says_which_cells_it_shows(marked: list[Marked]) -> None:
    assert len(marked) > 10
    assert [test for test, cells in marked if not cells] == []
    assert {runtime for _, cells in marked for _, runtime in cells} == set(RUNTIMES)


def test_the_table_has_the_cells_that_tests_show_and_no_others(marked: list[Marked]) -> None:
    shown = {cell for _, cells in marked for cell in cells}
    features = {feature for feature, *_ in rows()}
    missing = sorted({feature for feature, _ in shown} - features)
    assert not missing, "rows for the README:\n" + "\n".join(row_of(f, shown) for f in missing)
    assert sorted(said() - shown) == [], "the README says more than a test shows"
    assert sorted(shown - said()) == [], "a test shows more than the README says"


def test_a_cell_says_yes_or_who_refuses_and_a_feature_has_one_row() -> None:
    table = rows()
    assert [cell for _, *cells in table for cell in cells if not CELL.fullmatch(cell)] == []
    assert [row for row in table if len(row) != 1 + len(RUNTIMES)] == []
    assert [row for row in table if set(row[1:]) == {ABSENT}] == []
    assert [f for f, count in Counter(row[0] for row in table).items() if count > 1] == []


def test_the_error_that_a_cell_quotes_is_what_a_test_expects() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests/matrix").glob("test_*.py"))
    refused = [match[1] for _, *cells in rows() for c in cells if (match := REFUSED.fullmatch(c))]
    assert len(refused) > 10
    assert [quote for quote in refused if f'"{quote}"' not in tests] == []
