"""Who differs, who is behind, who is missing: what the records of a group prove, in sentences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..signature import NO_GRADIENT
from .line import Line, Wait, lay
from .values import DONE, Entry, FlightRecord
from .words import moment, ranks_in_words, seconds_in_words

__all__ = ["verdict"]

# What all ranks must agree on; shapes and dtypes are compared lane by lane.
_COMPARED = ("sequence", "phase", "op", "name", "topology", "grad", "step")
_SHOWN = ("sequence", "phase", "op", "name")  # by an entry in words
_MOST = 4  # of a kind of sentence, and of ranks that a sentence spells out
_CLOCKS = 0.1  # seconds that clocks of one host may seem to differ


def verdict(records: Sequence[FlightRecord]) -> list[str]:
    """Return what the records of one group say, the most telling first.

    Args:
        records: Of any ranks of one group; of two of one rank the later one counts.
    """
    newest = {r.rank: r for r in sorted(records, key=lambda record: record.written)}
    if not newest:
        return ["There is no record."]
    line = lay([newest[rank] for rank in sorted(newest)])
    cause = [*_first_difference(line), *_behind(line, newest)]
    absent = list(_missing(line, newest))
    return [
        *cause,
        *absent,
        *([] if cause or absent else _in_step(line, newest)),
        *_failures(newest),
        *_doubts(records, newest),
        *_clocks(line, newest),
    ]


def _first_difference(line: Line) -> Iterator[str]:
    """Say where the ranks differ first: what comes after follows from it."""
    for entries in line.positions:
        found = [*_differing_calls(entries), *_differing_lanes(entries)]
        if found:
            yield from found[:_MOST]
            return


def _differing_calls(entries: dict[int, Entry]) -> Iterator[str]:
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    modes = {entry.grad for entry in entries.values()} - {NO_GRADIENT}
    compared = [name for name in _COMPARED if name != "grad" or len(modes) > 1]
    for rank, entry in sorted(entries.items()):
        alike[tuple(getattr(entry, name) for name in compared)].append(rank)
    most, *fewer = sorted(alike.values(), key=lambda ranks: -len(ranks))
    usual = entries[most[0]]
    for ranks in fewer:
        entry = entries[ranks[0]]
        differ = [n for n in compared if getattr(entry, n) != getattr(usual, n)]
        how = ", ".join(
            n if n in _SHOWN else f"{n} ({getattr(entry, n)} / {getattr(usual, n)})" for n in differ
        )
        yield (
            f"{_first_up(ranks_in_words(ranks))} ran exchange {entry} where"
            f" {ranks_in_words(most)} ran {usual}: differs in {how}."
        )


def _differing_lanes(entries: dict[int, Entry]) -> Iterator[str]:
    for rank, entry in sorted(entries.items()):
        for lane in entry.lanes:
            peer = entries.get(rank if lane.destination is None else lane.destination)
            if lane.destination in (None, rank) or peer is None:
                continue
            awaited = {other.key: other.awaits for other in peer.lanes if other.source == rank}
            if lane.key in awaited and awaited[lane.key] != lane.sends:
                yield (
                    f"In exchange {entry} rank {rank} sends {lane.sends or 'nothing'} on lane"
                    f" {lane.key} to rank {lane.destination}, which awaits"
                    f" {awaited[lane.key] or 'nothing'}."
                )


def _behind(line: Line, records: dict[int, FlightRecord]) -> Iterator[str]:
    """Say who has not come to an exchange in which others wait for them."""
    awaited: dict[int, list[Wait]] = defaultdict(list)
    for wait in line.waits():
        peer = wait.peer
        if peer in records and records[peer].waiting is None and line.last(peer) < wait.position:
            awaited[peer].append(wait)
    sentences: dict[str, list[int]] = defaultdict(list)
    for rank, waits in sorted(awaited.items()):
        entry = line.positions[waits[0].position][waits[0].rank]
        sentences[_where_it_stopped(records[rank], entry) + _who_waits(waits)].append(rank)
    for sentence, ranks in list(sentences.items())[:_MOST]:
        yield _first_up(ranks_in_words(ranks)) + sentence


def _where_it_stopped(record: FlightRecord, entry: Entry) -> str:
    done = record.last_done
    so_far = f"finished {done.number}" if done is not None else "has finished no exchange"
    return f" {so_far} and did not start {entry}"


def _who_waits(waits: Sequence[Wait]) -> str:
    ranks = sorted({wait.rank for wait in waits})
    if len(ranks) > _MOST:
        return f": {ranks_in_words(ranks)} wait for it there."
    which = "; ".join(f"rank {rank} {_in_words(waits, rank)}" for rank in ranks)
    return f", where others wait for it: {which}."


def _in_words(waits: Sequence[Wait], rank: int) -> str:
    mine = [wait for wait in waits if wait.rank == rank]
    awaited = [wait for wait in mine if wait.incoming]
    return " and ".join(map(str, awaited or mine))


def _missing(line: Line, records: dict[int, FlightRecord]) -> Iterator[str]:
    size = max(record.size for record in records.values())
    absent = [rank for rank in range(size) if rank not in records]
    if not absent:
        return
    waits = [wait for wait in line.waits() if wait.peer in absent]
    waiting = ranks_in_words(wait.rank for wait in waits)
    yield (
        f"There is no file of {ranks_in_words(absent)}"
        + (f", for which {waiting} wait{'s' if len({w.rank for w in waits}) == 1 else ''}: "
           if waits else ": ")
        + "killed, still running, or on another host (copy the files of all hosts into one folder)."
    )  # fmt: skip


def _in_step(line: Line, records: dict[int, FlightRecord]) -> Iterator[str]:
    """Say what follows from records of all ranks in which no two differ."""
    waiting = {rank: r.waiting for rank, r in records.items() if r.waiting is not None}
    if not line.positions:
        yield "Nothing was exchanged."
    elif not waiting:
        last = max(line.last(rank) for rank in records)
        entry = next(iter(line.positions[last].values()))
        yield f"All ranks agree, and none waits; the last exchange is {entry}."
    elif len(waiting) == len(records) and len({e.key for e in waiting.values()}) == 1:
        yield (
            f"All ranks wait in exchange {next(iter(waiting.values()))} and agree on it: a process"
            " or the network stood still, or the deadline was too short."
        )
    else:
        for rank, entry in sorted(waiting.items())[:_MOST]:
            yield f"Rank {rank} waits in exchange {entry}, in which no two ranks differ."


def _failures(records: dict[int, FlightRecord]) -> Iterator[str]:
    failed = sorted((r for r in records.values() if r.failure), key=lambda r: r.written)
    if not failed:
        return
    first, last = failed[0], failed[-1]
    text = " ".join(first.failure.split())
    yield f"Rank {first.rank} failed first, at {moment(first.written)}: {text}"
    if len(failed) > 1:
        others = ranks_in_words(record.rank for record in failed[1:])
        later = seconds_in_words(last.written - first.written)
        yield f"{_first_up(others)} failed within {later} of it."


def _doubts(records: Sequence[FlightRecord], newest: dict[int, FlightRecord]) -> Iterator[str]:
    """Say what makes the files look like those of different runs."""
    twice = {r.rank for r in records if sum(other.rank == r.rank for other in records) > 1}
    if twice:
        yield f"There are several files of {ranks_in_words(twice)}; the latest of each counts."
    for fact in ("size", "versions"):
        by_value: dict[str, list[int]] = defaultdict(list)
        for rank, record in sorted(newest.items()):
            by_value[str(getattr(record, fact))].append(rank)
        if len(by_value) > 1:
            said = "; ".join(f"{value} on {ranks_in_words(r)}" for value, r in by_value.items())
            yield f"The ranks differ in {fact}: {said}. Are the files of one run?"
    for rank, record in sorted(newest.items()):
        began = [r.entries[0].started for r in newest.values() if r.entries and r is not record]
        if began and record.written < min(began):
            yield (
                f"The file of rank {rank} was written at {moment(record.written)}, before the"
                " first exchange in the others': it may be of an earlier run."
            )


def _clocks(line: Line, records: dict[int, FlightRecord]) -> Iterator[str]:
    """Say which clocks differ: what has arrived was sent before."""
    ahead: dict[tuple[int, int], float] = defaultdict(float)
    for entries in line.positions:
        for rank, entry in entries.items():
            for lane in entry.lanes if entry.state == DONE else ():
                sent = None if lane.source is None else entries.get(lane.source)
                if sent is not None and sent.key == entry.key and lane.source is not None:
                    pair = lane.source, rank
                    ahead[pair] = max(ahead[pair], sent.started - entry.ended)
    wrong = sorted((pair for pair in ahead if ahead[pair] > _CLOCKS), key=lambda p: -ahead[p])
    for fast, slow in wrong[:1]:
        yield (
            f"The clock of rank {fast} ({records[fast].host}) is ahead of that of rank {slow}"
            f" ({records[slow].host}) by {seconds_in_words(ahead[fast, slow])} or more: times of"
            " different hosts do not compare."
        )
    if line.strangers:
        yield (
            f"The record of {ranks_in_words(line.strangers)} has no exchange in common with the"
            " others': it is far ahead or behind, or of another run."
        )


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
