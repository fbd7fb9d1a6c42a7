"""The elastic example by one process; tests/matrix kills a real rank of two."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import elastic


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_a_training_in_two_parts_ends_as_one_in_one_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    elastic.train(tmp_path / "whole.pt", kill_at=None)
    whole = last_line(capsys)
    with monkeypatch.context() as shorter:
        shorter.setattr(elastic, "STEPS", 5)
        elastic.train(tmp_path / "parts.pt", kill_at=None)
    elastic.train(tmp_path / "parts.pt", kill_at=5)  # in a first attempt only
    assert "rank 0 of 1 starts at step 5" in capsys.readouterr().out
    elastic.train(tmp_path / "parts.pt", kill_at=None)
    assert last_line(capsys) == whole
    assert whole.startswith("step 8: loss of rank 0 ")
