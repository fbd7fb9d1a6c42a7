"""What one rank believes of its group, as it is written down for the others and compared.

An entry is JSON with fixed keys and of bounded length: nothing that was read is ever unpickled.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import NamedTuple

from .errors import CollectivesError, ContextError

__all__ = [
    "PROTOCOL",
    "Entry",
    "Facts",
    "Process",
    "absence",
    "departure",
    "disagreement",
    "shortened",
    "this_process",
]

PROTOCOL = 1
"""Number of the wire protocol: tags, headers and entries of another number are not understood."""

_LONGEST_ENTRY = 65_536  # bytes
_LONGEST_TEXT = 1_500  # characters of a fact or a failure
_NAMED = 8  # ranks that an error text names


@dataclass(frozen=True, slots=True)
class Facts:
    """What one rank believes; all but the rank and the door must be the same on all ranks.

    A text that is empty is unknown, and is compared with nothing.

    Args:
        rank: Which the process claims.
        size: Number of ranks of the group.
        topology: Its repr.
        job: What tells the job from others; see ``collectives.launcher.find_job``.
        torch: Version of torch; what follows a "+" (the build) may differ.
        protocol: Of this library.
        verify: Of the first Exchange.
        door: Where ranks of the same host find it; "" if it has none.
    """

    rank: int
    size: int
    topology: str = ""
    job: str = ""
    torch: str = ""
    protocol: int = PROTOCOL
    verify: str = ""
    door: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from every other by its token; host and number are for error texts."""

    host: str
    pid: int
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


_known: dict[int, Process] = {}  # by process number: a fork is another process


def this_process() -> Process:
    """Return who this process is, with a token that is made once."""
    pid = os.getpid()
    return _known.setdefault(pid, Process(socket.gethostname()[:255], pid, secrets.token_hex(8)))


class Entry(NamedTuple):
    """What one process writes: that it came, or why it gave up.

    Args:
        facts: Of the rank that it claims.
        process: Which it is.
        failure: Why it gave up; "" when it came.
        kind: The class of error that is.
        run: Its name for this greeting, unlike any other; that of rank 0 counts.
        again: It is not the first that the process writes.
    """

    facts: Facts
    process: Process
    failure: str = ""
    kind: str = ""
    run: str = ""
    again: bool = False

    @property
    def where(self) -> str:
        """Who says so, for error texts."""
        return f"(rank {self.facts.rank} of {self.facts.size}, {self.process})"

    @classmethod
    def coming(cls, facts: Facts, process: Process) -> Entry:
        """Return the entry of a process that comes, its long texts as all compare them."""
        known = replace(facts, topology=shortened(facts.topology), job=shortened(facts.job))
        return cls(known, process, run=secrets.token_hex(8))

    def giving_up(self, failure: str, kind: type[CollectivesError]) -> Entry:
        """Return what the process writes when it gives up."""
        return self._replace(failure=shortened(failure), kind=kind.__name__)

    def dump(self) -> str:
        """Return the entry as JSON."""
        values = {field.name: getattr(self.facts, field.name) for field in fields(Facts)}
        values |= {"host": self.process.host, "pid": self.process.pid, "token": self.process.token}
        how = {"failure": self.failure, "kind": self.kind, "run": self.run, "again": self.again}
        return json.dumps({**values, **how})

    @classmethod
    def load(cls, data: bytes) -> Entry:
        """Read an entry; keys that are unknown are left aside.

        Raises:
            ContextError: No rank wrote this.
        """
        try:
            return cls._parse(data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ContextError(
                f"hello: expected entries of ranks in the store, got {data[:60]!r}; does another"
                " program write there? give this job an address (MASTER_PORT) of its own"
            ) from error

    @classmethod
    def _parse(cls, data: bytes) -> Entry:
        if len(data) > _LONGEST_ENTRY:
            raise ValueError(f"expected at most {_LONGEST_ENTRY} bytes, got {len(data)}")
        found = json.loads(data)
        facts = Facts(
            _number(found["rank"]),
            _number(found["size"]),
            _text(found["topology"]),
            _text(found["job"]),
            _text(found["torch"]),
            _number(found["protocol"]),
            _text(found.get("verify", "")),
            _text(found.get("door", "")),
        )
        process = Process(_text(found["host"]), _number(found["pid"]), _text(found["token"]))
        return cls(
            facts,
            process,
            _text(found["failure"]),
            kind=_text(found["kind"]),
            run=_text(found["run"]),
            again=found["again"] is True,
        )


def disagreement(mine: Entry, entries: Sequence[Entry]) -> str:
    """Return in what the ranks disagree, seen from one of them; "" if in nothing."""
    ranks_of: dict[str, list[int]] = {}
    remedies: dict[str, None] = {}
    for entry in entries:
        if different := _differences(mine.facts, entry.facts):
            ranks_of.setdefault(", ".join(different.values()), []).append(entry.facts.rank)
            remedies[_FACTS[next(iter(different))]] = None
    if not ranks_of:
        return _rival(mine, entries)
    which = "; ".join(
        f"{_name(ranks)} and rank {mine.facts.rank} disagree: {what}"
        for what, ranks in ranks_of.items()
    )
    return f"hello: {which} {mine.where}; {'; '.join(remedies)}"


def absence(mine: Entry, present: Container[int], timeout: float) -> str:
    """Return which ranks did not come within ``timeout`` seconds, and what to do."""
    size = mine.facts.size
    missing = [rank for rank in range(size) if rank not in present]
    return (
        f"hello: {_name(missing)} did not come within {timeout:.3g} s: {size - len(missing)} of"
        f" {size} came {mine.where}; start all ranks, and see the output of those that are missing"
    )


def departure(mine: Entry, gone: Sequence[int]) -> str:
    """Return which ranks have ended before they came."""
    return (
        f"hello: {_name(gone)} ended, or destroyed the process group, before the first exchange"
        f" over it {mine.where}; see the output there"
    )


# In the order in which one follows from the other: the first that differs says what to do.
_FACTS = {
    "protocol": "install one version of torch-collectives on all ranks",
    "job": "two jobs meet at one address: give each its own MASTER_PORT",
    "size": "start all ranks with the same number of ranks (WORLD_SIZE)",
    "torch": "install one version of torch on all ranks",
    "topology": "make the Exchange with the same topology on all ranks",
    "verify": "make the Exchange with the same verify= on all ranks",
}


def _differences(mine: Facts, other: Facts) -> dict[str, str]:
    """Return what differs, by its name."""
    found = {}
    for name in _FACTS:
        here, there = getattr(mine, name), getattr(other, name)
        known = here != "" and there != ""
        if known and _compared(name, here) != _compared(name, there):
            found[name] = f"{name} {there!r} there, {here!r} here"
    return found


def _compared(name: str, value: object) -> object:
    return value.partition("+")[0] if name == "torch" and isinstance(value, str) else value


def _rival(mine: Entry, entries: Sequence[Entry]) -> str:
    """Return which two processes claim one rank; "" if none do."""
    claims: dict[int, Process] = {}
    for entry in entries:
        first = claims.setdefault(entry.facts.rank, entry.process)
        if first.token != entry.process.token:
            return (
                f"hello: two processes claim rank {entry.facts.rank}: {first} and {entry.process}"
                f" {mine.where}; give every process its own RANK, and every job its own address"
                " (MASTER_PORT); a store that outlives its processes serves one start only"
            )
    return ""


def _name(ranks: Sequence[int]) -> str:
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"ranks {', '.join(map(str, numbers[:_NAMED]))}{more}"


def shortened(text: str, most: int = _LONGEST_TEXT) -> str:
    """Return the text, or its beginning and a digest; not to be applied twice."""
    if len(text) <= most:
        return text
    digest = sha256(text.encode(errors="replace")).hexdigest()
    return f"{text[:most]}... ({len(text)} characters, sha256 {digest[:16]})"


def _number(value: object) -> int:
    if type(value) is not int:  # a bool is an int, but no number
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
