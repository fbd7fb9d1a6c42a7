"""Every mistake is an error within seconds, on every rank; and the matrix would notice if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.support.ranks import linux

from .judge import Verdict
from .matrix import ROWS
from .row import Row
from .stage import Stage

# What becomes of these without the guard; sequence, step and side are in the tags even then, so
# that some wait in vain where plain torch.distributed takes what it gets.
WITHOUT_THE_GUARD = {
    "skip one": "raised ExchangeTimeout",
    "swapped order": "got wrong values",
    "more bytes": "ended with -6",
    "fewer bytes": "ended with -6",
    "other dtype, same bytes": "got wrong values",
    "other shape, same bytes": "raised nothing",
    "backward against forward": "raised ExchangeTimeout",
    "no_grad on one rank": "raised nothing",
    "ring reversed on one rank": "raised ExchangeTimeout",
}

Play = Callable[[Row, str, str], Verdict]


@pytest.fixture(scope="module")
def play(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Play]:
    """Return a function for verdicts; all rows of the selected tests are played side by side."""
    stage = Stage(tmp_path_factory.mktemp("faults"))
    wanted: dict[tuple[Row, str, str], Future[Verdict]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and "row" in parameters:
            key = parameters["row"], parameters.get("verify", "auto"), parameters["over"]
            wanted[key] = stage.play(*key)
    yield lambda *key: wanted[key].result()
    stage.close()


@linux
@pytest.mark.parametrize("over", ["same host", "gloo"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_every_fault_ends_as_promised(row: Row, over: str, play: Play) -> None:
    verdict = play(row, "auto", over)
    if verdict.complaints:
        pytest.fail(str(verdict), pytrace=False)


@linux
@pytest.mark.parametrize("over", ["gloo"])  # where nothing is verified, it all goes over gloo
@pytest.mark.parametrize("verify", ["off"])
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.fault in WITHOUT_THE_GUARD], ids=lambda row: row.fault
)
def test_the_matrix_notices_when_the_guard_is_off(
    row: Row, verify: str, over: str, play: Play
) -> None:
    harm = WITHOUT_THE_GUARD[row.fault]
    assert any(harm in complaint for complaint in play(row, verify, over).complaints)


def test_names_of_rows_are_unique_and_those_without_the_guard_exist() -> None:
    names = [row.fault for row in ROWS]
    assert len(set(names)) == len(names)
    assert WITHOUT_THE_GUARD.keys() <= set(names)


def test_the_readme_says_how_many_faults_there_are() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"`make faults` plays {len(ROWS)} faults" in readme
