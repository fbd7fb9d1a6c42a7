"""What a rank tells the others when it is stuck: what it waits for, and what it has posted.

An account is JSON with fixed keys, read with bounds: nothing that comes from another process is
ever unpickled, and what is too long or malformed counts as not being there.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ..signature import Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..messages import PackedMessage, SingleMessage
    from ..trace import Trace

__all__ = ["Account", "Cause", "Elsewhere", "Entry", "entry_of", "read_account", "read_cause"]

_LONGEST = 256 * 1024  # characters of an account
_LONGEST_TEXT = 400  # of one text in it
_LONGEST_CAUSE = 4000
_MANY = 128  # entries

T = TypeVar("T")
Digests = dict[int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """One exchange of a group, as others see it.

    Args:
        signature: In words.
        facts: Digest of all that must be equal on every rank, the texts at full length.
        sends: Digest of the tags of what leaves, by the rank that gets it.
        awaits: Digest of the tags of what arrives, by the rank that it comes from.
        done: Whether everything has been moved.
        owner: Number of its Exchange on the group.
    """

    signature: Signature
    facts: int
    sends: Digests
    awaits: Digests
    done: bool
    owner: int

    @property
    def key(self) -> tuple[int, str]:
        """Number and phase: of one such exchange all ranks have the same facts."""
        return self.signature.sequence, self.signature.phase

    def fits(self, other: Entry, rank: int, peer: int) -> bool:
        """Whether this exchange of ``rank`` and the other of ``peer`` are the two ends of one."""
        return (
            self.facts == other.facts
            and self.sends.get(peer) == other.awaits.get(rank)
            and self.awaits.get(peer) == other.sends.get(rank)
        )

    def needs(self, peer: int) -> bool:
        """Whether anything goes to, or comes from, that rank."""
        return peer in self.sends or peer in self.awaits


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a rank waits for in another group.

    Args:
        run: Name of that group, the same on all its ranks.
        rank: Which it is there.
        entry: The exchange.
        bound: Whether the thread that waits there is the one that exchanges here.
    """

    run: str
    rank: int
    entry: Entry
    bound: bool


@dataclass(frozen=True, slots=True)
class Account:
    """Where one rank of a group stands.

    Args:
        rank: Whose account it is.
        entries: Its last exchanges, in the order of posting.
        waits: Index of the one that it waits for; -1: none.
        count: Exchanges that it has numbered so far.
        left: Why it will exchange no more; empty while it may.
        closed: Numbers of its Exchanges that will exchange no more.
        elsewhere: What it waits for in another group.
        whole: Whether the entries are all that it has ever posted.
    """

    rank: int
    entries: tuple[Entry, ...] = ()
    waits: int = -1
    count: int = 0
    left: str = ""
    closed: tuple[int, ...] = ()
    elsewhere: Elsewhere | None = None
    whole: bool = True

    @property
    def waiting(self) -> Entry | None:
        """The exchange that it waits for."""
        return self.entries[self.waits] if 0 <= self.waits < len(self.entries) else None

    def find(self, key: tuple[int, str]) -> list[Entry]:
        """Return its exchanges of that number and phase."""
        return [entry for entry in self.entries if entry.key == key]

    def dumps(self) -> str:
        """Return it as JSON; where that is too long to be read, without the oldest entries."""
        text, kept = json.dumps(asdict(self)), len(self.entries)
        while len(text) > _LONGEST and kept > 1:
            kept //= 2
            begin = len(self.entries) - kept
            waits = self.waits - begin if self.waits >= begin else -1
            short = replace(self, entries=self.entries[begin:], waits=waits, whole=False)
            text = json.dumps(asdict(short))
        return text


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a group failed: the first that any rank found.

    Args:
        kind: "mismatch", "timeout", "lost", "left", "raised", "aborted" or "interrupted".
        rank: Of the group, that says so.
        text: A sentence.
        lost: The rank whose connection was closed; -1 where none was, or it is not known which.
    """

    kind: str
    rank: int
    text: str
    lost: int = -1

    def dumps(self) -> str:
        """Return it as JSON."""
        return json.dumps({**asdict(self), "text": _cut(self.text, _LONGEST_CAUSE)})


def entry_of(trace: Trace, mix: int, where: str = "") -> Entry:
    """Return what others must know of an exchange.

    Args:
        trace: Of the exchange.
        mix: What the engine put into all of its tags.
        where: ``file:line`` of the caller.
    """
    call = trace.call
    whole = trace.signature(where)
    # Not the grad mode: it is in the tag of each message for which it matters.
    facts = (whole.op, whole.name, whole.topology, whole.phase, whole.step, whole.verify)
    short = Signature(
        **{
            **{name: _cut(text) for name, text in _texts(whole).items()},
            "step": whole.step,
            "sequence": whole.sequence,
        }  # type: ignore[arg-type]
    )
    return Entry(
        short,
        zlib.crc32(repr(facts).encode()),
        sends=_tags(call.sent, mix),
        awaits=_tags(call.awaited, mix),
        done=trace.ended > 0,
        owner=call.owner,
    )


def read_account(text: str | bytes) -> Account | None:
    """Return the account, or ``None`` for what is none."""
    data = _read(text)
    entries = None if data is None else data.get("entries")
    if data is None or not isinstance(entries, list):
        return None
    try:
        return Account(
            rank=_as(int, data["rank"]),
            entries=tuple(map(_read_entry, entries[-_MANY:])),
            waits=_as(int, data["waits"]),
            count=_as(int, data["count"]),
            left=_cut(_as(str, data["left"])),
            closed=tuple(_as(int, owner) for owner in _as(list, data["closed"])),
            elsewhere=_read_elsewhere(data["elsewhere"]),
            whole=_as(bool, data["whole"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def read_cause(text: str | bytes) -> Cause | None:
    """Return the cause, or ``None`` for what is none."""
    data = _read(text)
    if data is None:
        return None
    try:
        kind, rank, text = _as(str, data["kind"]), _as(int, data["rank"]), _as(str, data["text"])
        lost = _as(int, data["lost"])
    except (KeyError, TypeError):
        return None
    return Cause(kind, rank, _cut(text, _LONGEST_CAUSE), lost)


def _tags(messages: Sequence[SingleMessage | PackedMessage], mix: int) -> Digests:
    tags: dict[int, list[int]] = {}
    for message in messages:
        tags.setdefault(message.peer, []).append(message.tag ^ mix)
    return {peer: zlib.crc32(repr(sorted(found)).encode()) for peer, found in tags.items()}


def _read(text: str | bytes) -> dict[str, object] | None:
    if len(text) > _LONGEST:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _read_entry(data: dict[str, object]) -> Entry:
    signature = dict(_as_dict(data["signature"]))
    steps = _as(list, signature.pop("step"))
    sequence = _as(int, signature.pop("sequence"))
    texts = {name: _cut(_as(str, text)) for name, text in signature.items()}
    return Entry(
        Signature(step=tuple(_as(int, n) for n in steps), sequence=sequence, **texts),
        facts=_as(int, data["facts"]),
        sends=_read_tags(data["sends"]),
        awaits=_read_tags(data["awaits"]),
        done=_as(bool, data["done"]),
        owner=_as(int, data["owner"]),
    )


def _read_elsewhere(data: object) -> Elsewhere | None:
    if data is None:
        return None
    there = _as_dict(data)
    return Elsewhere(
        run=_as(str, there["run"]),
        rank=_as(int, there["rank"]),
        entry=_read_entry(_as_dict(there["entry"])),
        bound=_as(bool, there["bound"]),
    )


def _read_tags(data: object) -> Digests:
    return {int(peer): _as(int, digest) for peer, digest in _as_dict(data).items()}


def _as_dict(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _as(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _texts(signature: Signature) -> dict[str, str]:
    return {
        "op": signature.op,
        "name": signature.name,
        "topology": signature.topology,
        "phase": signature.phase,
        "grad": signature.grad,
        "tensors": signature.tensors,
        "where": signature.where,
        "verify": signature.verify,
    }


def _cut(text: str, most: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
