"""The judge of the matrix sees each way in which a row can fail."""

from __future__ import annotations

from typing import Any

import pytest

from collectives.errors import ExchangeMismatch, PeerLost

from .judge import Outcome, judge
from .row import NOTHING, SLACK, Expected, Row

MISMATCH = Expected((ExchangeMismatch,), within=1.0, says=("rank 2", "step"))


def raised(error: type[BaseException], text: str, at: float) -> dict[str, Any]:
    classes = [kind.__name__ for kind in error.__mro__]
    return {"by": 0, "at": at, "kind": "error", "classes": classes, "text": text}


def told(kind: str, **details: object) -> dict[str, Any]:
    return {"by": 0, "at": 10.0, "kind": kind, **details}


FAULT = told("fault")
END = told("end", threads=[])
RIGHT = raised(ExchangeMismatch, "step 5 on rank 2", 10.7)


def complaints(expected: Expected, *events: dict[str, Any], code: int | None) -> tuple[str, ...]:
    row = Row("fault", lambda _: None, expected, size=1)
    ended = {} if code is None else {0: code}
    return judge(row, Outcome(ended, events, 1.0, {})).complaints


def test_what_is_as_expected_gives_no_complaint() -> None:
    assert complaints(NOTHING, FAULT, END, code=0) == ()
    assert complaints(MISMATCH, FAULT, RIGHT, END, code=1) == ()
    maybe = Expected((PeerLost,), or_nothing=True)
    assert complaints(maybe, FAULT, code=0) == ()
    interrupted = Expected((KeyboardInterrupt,))
    assert complaints(interrupted, FAULT, raised(KeyboardInterrupt, "", 10.0), code=-2) == ()


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (None, "raised nothing, expected ExchangeMismatch"),
        (raised(PeerLost, "step on rank 2", 10.5), "raised PeerLost, expected ExchangeMismatch"),
        (raised(ExchangeMismatch, "on rank 2", 10.5), "does not say 'step'"),
        (raised(ExchangeMismatch, "step on rank 2", 11.1 + SLACK), "expected 1 s + 2.5 s"),
    ],
)
def test_an_error_that_is_missing_wrong_vague_or_late_is_a_complaint(
    event: dict[str, Any] | None, complaint: str
) -> None:
    events = [FAULT] if event is None else [FAULT, event]
    (found,) = complaints(MISMATCH, *events, code=0 if event is None else 1)
    assert complaint in found


def test_an_error_without_a_fault_is_a_complaint() -> None:
    assert "took nan s" in complaints(MISMATCH, RIGHT, code=1)[0]


@pytest.mark.parametrize(
    ("events", "code", "complaint"),
    [
        ([told("corrupt", rank=1, step=4)], 0, "got wrong values from rank 1 at step 4"),
        ([raised(PeerLost, "", 10.0)], 1, "raised PeerLost, expected no error"),
        ([], -6, "ended with -6, expected 0"),
        ([], None, "did not end"),
        ([told("end", threads=["watchdog"])], 0, "left threads behind: watchdog"),
    ],
)
def test_harm_where_nothing_is_expected_is_a_complaint(
    events: list[dict[str, Any]], code: int | None, complaint: str
) -> None:
    (found,) = complaints(NOTHING, FAULT, *events, code=code)
    assert complaint in found


def test_an_error_that_was_expected_and_exit_code_zero_do_not_go_together() -> None:
    assert "ended with 0, expected 1" in complaints(MISMATCH, FAULT, RIGHT, code=0)[0]
