"""README.md lists every entry once, with tests that exist and name the entry and its reports."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
ENTRY = re.compile(r"\bC\d\d\b")
REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")

# Numbers of the catalogue that this table comes from: its gaps belong to later issues or to GPUs.
NUMBERS = [
    *(1, 3, 6, 8, 9, 12, 13),
    *(15, 16, 17, 18, 19, 21, 22, 23, 25, 26, 29, 31, 32, 34, 36, 37, 38),
    *(39, 41, 42, 45, 47, 49, 51, 52, 53, 54, 55, 57, 58),
    *(60, 61, 62, 67, 68),
    *(69, 70, 71, 74, 76, 77, 78),
    *(79, 80, 82, 83, 84, 85, 86),
]
ENTRIES = [f"C{number:02}" for number in NUMBERS]


class Row(NamedTuple):
    entry: str
    reports: frozenset[str]
    tests: frozenset[str]


def rows() -> list[Row]:
    lines = (FOLDER / "README.md").read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines if re.match(r"\| C\d\d ", line)]
    return [
        Row(
            entry.strip(),
            frozenset(REPORT.findall(reports)),
            frozenset(re.findall(r"`(test_\w+\.py::test_\w+)`", tests)),
        )
        for entry, _, reports, tests, _ in cells
    ]


def docstrings() -> dict[str, str]:
    return {
        f"{path.name}::{node.name}": ast.get_docstring(node) or ""
        for path in sorted(FOLDER.glob("test_*.py"))
        if path.name != Path(__file__).name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_table_has_one_row_for_every_entry_in_order() -> None:
    assert [row.entry for row in rows()] == ENTRIES


def test_the_table_names_the_tests_that_name_the_entry_and_no_others() -> None:
    of_entry = {entry: set[str]() for entry in ENTRIES}
    for test, docstring in docstrings().items():
        entries = ENTRY.findall(docstring)
        assert entries, f"{test} names no entry"
        for entry in entries:
            of_entry[entry].add(test)
    assert {row.entry: row.tests for row in rows()} == of_entry
    assert all(of_entry.values())


def test_the_reports_of_an_entry_are_in_the_docstrings_of_its_tests() -> None:
    texts = docstrings()
    for row in rows():
        found = {report for test in row.tests for report in REPORT.findall(texts[test])}
        assert found == row.reports, row.entry
