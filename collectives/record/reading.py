"""Reading flight records: strictly, since files come from anywhere.

Every key must be there and no other, every value of its type and within its bounds. What is read
is never more than text and numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Literal, NoReturn

from ..errors import ArgumentError
from .values import (
    DONE,
    FORMAT,
    MOST_ENTRIES,
    MOST_LANES,
    MOST_NUMBER,
    MOST_RANKS,
    MOST_STEPS,
    MOST_TEXT,
    UNDER_WAY,
    Entry,
    FlightRecord,
    Lane,
)

__all__ = ["from_json", "load"]

_MOST_BYTES = 16 * 2**20


def load(path: str | Path) -> FlightRecord:
    """Read the file that :meth:`FlightRecord.save` wrote.

    Raises:
        ArgumentError: It is no flight record; the text names the file and what is wrong with it.
        OSError: It cannot be read.
    """
    path = Path(path)
    if not path.is_file():  # a pipe would be waited for
        raise ArgumentError(f"{path}: expected a file that a flight record was saved to, got none")
    if path.stat().st_size > _MOST_BYTES:
        raise ArgumentError(
            f"{path}: a flight record has at most {_MOST_BYTES} bytes, got {path.stat().st_size};"
            " give a folder of files that flight records were saved to"
        )
    return from_json(path.read_bytes(), str(path))


def from_json(text: str | bytes, where: str = "flight record") -> FlightRecord:
    """Return the record that ``text`` holds.

    Args:
        text: As :meth:`FlightRecord.to_json` made it.
        where: The name of the file, for error texts.

    Raises:
        ArgumentError: It is no flight record.
    """
    try:
        facts: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"{where}: expected the JSON of a flight record, got text that is none: {error}"
        ) from error
    return _record(_Value(facts, where, ""))


class _Value:
    """One value of a file, and the way to it for error texts."""

    def __init__(self, value: object, file: str, path: str) -> None:
        self.value, self.file, self.path = value, file, path

    def refuse(self, expected: str) -> NoReturn:
        got = repr(self.value)
        at = f"{self.path}: " if self.path else ""
        raise ArgumentError(
            f"{self.file}: {at}expected {expected}, got"
            f" {got if len(got) <= 80 else got[:76] + ' ...'}; this is no flight record of this"
            " version of torch-collectives, or it was changed"
        )

    def keys(self, expected: list[str]) -> dict[str, _Value]:
        if not isinstance(self.value, dict) or sorted(map(str, self.value)) != sorted(expected):
            self.refuse(f"an object with the keys {', '.join(expected)}")
        dot = f"{self.path}." if self.path else ""
        return {key: _Value(self.value[key], self.file, f"{dot}{key}") for key in expected}

    def items(self, most: int) -> list[_Value]:
        if not isinstance(self.value, list) or len(self.value) > most:
            self.refuse(f"a list of at most {most}")
        return [_Value(x, self.file, f"{self.path}[{i}]") for i, x in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or len(self.value) > MOST_TEXT:
            self.refuse(f"a text of at most {MOST_TEXT} letters")
        return self.value

    def integer(self, low: int = 0, high: int = MOST_NUMBER) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            self.refuse(f"an integer in {low}..{high}")
        return self.value

    def rank(self, size: int) -> int | None:
        return None if self.value is None else self.integer(0, size - 1)

    def number(self) -> float:
        if type(self.value) not in (int, float) or not 0 <= self.value < math.inf:  # type: ignore[operator]
            self.refuse("a number of seconds")
        return float(self.value)  # type: ignore[arg-type]

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def state(self) -> Literal["done", "under way"]:
        if self.value == DONE:
            return DONE
        if self.value != UNDER_WAY:
            self.refuse(f"{DONE!r} or {UNDER_WAY!r}")
        return UNDER_WAY


def _names(cls: type[FlightRecord | Entry | Lane]) -> list[str]:
    return [field.name for field in fields(cls)]


def _record(value: _Value) -> FlightRecord:
    found = value.keys(["format", *_names(FlightRecord)])
    if found["format"].value != FORMAT:
        found["format"].refuse(repr(FORMAT))
    size = found["size"].integer(1, MOST_RANKS)
    versions = found["versions"].keys(["torch-collectives", "torch", "python"])
    return FlightRecord(
        rank=found["rank"].integer(0, size - 1),
        size=size,
        topology=found["topology"].text(),
        names=tuple(name.text() for name in found["names"].items(MOST_ENTRIES)),
        group=found["group"].text(),
        run=found["run"].text(),
        host=found["host"].text(),
        pid=found["pid"].integer(),
        versions={name: version.text() for name, version in versions.items()},
        written=found["written"].number(),
        failure=found["failure"].text(),
        entries=tuple(_entry(entry, size) for entry in found["entries"].items(MOST_ENTRIES)),
    )


def _entry(value: _Value, size: int) -> Entry:
    found = value.keys(_names(Entry))
    steps = found["step"].items(MOST_STEPS)
    return Entry(
        sequence=found["sequence"].integer(),
        phase=found["phase"].text(),
        op=found["op"].text(),
        name=found["name"].text(),
        topology=found["topology"].text(),
        grad=found["grad"].text(),
        step=tuple(number.integer(-MOST_NUMBER) for number in steps),
        tensors=found["tensors"].text(),
        state=found["state"].state(),
        waited=found["waited"].truth(),
        started=found["started"].number(),
        seconds=found["seconds"].number(),
        lanes=tuple(_lane(lane, size) for lane in found["lanes"].items(MOST_LANES)),
    )


def _lane(value: _Value, size: int) -> Lane:
    found = value.keys(_names(Lane))
    return Lane(
        key=found["key"].integer(),
        destination=found["destination"].rank(size),
        source=found["source"].rank(size),
        sends=found["sends"].text(),
        awaits=found["awaits"].text(),
    )
