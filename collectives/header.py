"""The 64 bytes that two ranks exchange to agree, before anything of the payload is posted.

A header says which exchange a rank is in: its number, digests of what both ends must have in
common, and digests of what travels between the two, each way. The comparison is the same on both
ends, so that both raise or neither does. Nothing in a header is trusted: it may come from an
exchange that sends no headers, from another version, or from chance.

What differs is decided by 64-bit digests; 16-bit hints, one for each fact, only serve to name it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from .facts import PROTOCOL
from .signature import PHASES, Signature

__all__ = ["MOST_DESCRIBED", "MOST_LEAVES", "SIZE", "Header", "Pair", "digest"]

SIZE = 64
MOST_LEAVES = 10_000  # of one rank, where shapes are discovered
MOST_DESCRIBED = 64 * 1024  # bytes of a description

_MAGIC = b"nbx"
_LAYOUT = struct.Struct("<3sBBBHIQQ4HQQ12s")
_GRAD, _SMOOTH, _DISCOVER = 1, 2, 4
_FACTS = ("operation", "name", "topology", "step")
_LABEL = 12
_SATURATED = 0xFFFF
_MODES, _SHAPES = ("no_grad", "grad"), ("same", "discover")


def digest(thing: object) -> int:
    """Return 64 bits that stand for the repr of a thing, alike in every process."""
    return int.from_bytes(blake2b(repr(thing).encode(), digest_size=8).digest(), "little")


class Pair(NamedTuple):
    """What travels between this rank and one peer in a call.

    Args:
        peer: The other end.
        sends: Digest of what goes there.
        expects: Digest of what comes from there.
        leaves: Tensors that go there.
        smooth: Whether gradients flow through any of them.
        key: Digest of all that must be agreed on once, the step and the number left out.
    """

    peer: int
    sends: int
    expects: int
    leaves: int
    smooth: bool
    key: int


@dataclass(frozen=True, slots=True)
class Header:
    """What one rank says to one peer.

    Args:
        sequence: Number of the exchange.
        phase: Index into ``signature.PHASES``.
        grad: Whether gradients are recorded.
        smooth: Whether any tensor that is sent can have one; else the modes may differ.
        discover: Whether shapes are asked for.
        leaves: Number of tensors sent to the peer, at most 65,535.
        describes: Bytes of the description that follows, where shapes are discovered.
        facts: Digest of operation, name, topology and step.
        hints: Of each of these alone.
        sends: Digest of what goes to the peer.
        expects: Digest of what is awaited from it.
        label: Operation and name, cut short; for error texts only.
    """

    sequence: int
    phase: int
    grad: bool
    smooth: bool
    discover: bool
    leaves: int
    describes: int
    facts: int
    hints: tuple[int, ...]
    sends: int
    expects: int
    label: str

    @classmethod
    def of(
        cls,
        signature: Signature,
        pair: Pair,
        *,
        phase: int,
        grad: bool,
        discover: bool = False,
        describes: int = 0,
    ) -> Header:
        """Return what a rank in the exchange of that signature says to the peer of ``pair``."""
        facts = (signature.op, signature.name, signature.topology, signature.step)
        return cls(
            sequence=signature.sequence,
            phase=phase,
            grad=grad,
            smooth=pair.smooth,
            discover=discover,
            leaves=min(pair.leaves, _SATURATED),
            describes=describes,
            facts=digest(facts),
            hints=tuple(digest(fact) & 0xFFFF for fact in facts),
            sends=pair.sends,
            expects=pair.expects,
            label=f"{signature.op.partition('(')[0]} {signature.name}".strip(),
        )

    def pack(self) -> bytes:
        """Return the header as it travels."""
        return _LAYOUT.pack(
            _MAGIC,
            PROTOCOL,
            _GRAD * self.grad | _SMOOTH * self.smooth | _DISCOVER * self.discover,
            self.phase,
            self.leaves,
            self.describes,
            self.sequence,
            self.facts,
            *self.hints,
            self.sends,
            self.expects,
            self.label.encode()[:_LABEL],
        )

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Return the header that ``data`` is.

        Raises:
            ValueError: It is none; says why.
        """
        if len(data) != SIZE or data[:3] != _MAGIC:
            raise ValueError("what came is no header")
        (_, version, flags, phase, leaves, describes, sequence, facts, *hints, sends, expects,
         label) = _LAYOUT.unpack(data)  # fmt: skip
        if version != PROTOCOL:
            raise ValueError(f"its header has version {version}, not {PROTOCOL}")
        if phase >= len(PHASES) or flags > _GRAD | _SMOOTH | _DISCOVER:
            raise ValueError("its header makes no sense")
        discover = bool(flags & _DISCOVER)
        if describes > (MOST_DESCRIBED if discover else 0) or (describes > 0) != (
            discover and leaves > 0
        ):
            raise ValueError(f"its header announces {describes} bytes for {leaves} tensors")
        return cls(
            sequence=sequence,
            phase=phase,
            grad=bool(flags & _GRAD),
            smooth=bool(flags & _SMOOTH),
            discover=discover,
            leaves=leaves,
            describes=describes,
            facts=facts,
            hints=tuple(hints),
            sends=sends,
            expects=expects,
            label=_printable(label),
        )

    def differences(self, other: Header) -> list[str]:
        """Return in words what keeps this end and the ``other`` from being one exchange."""
        found = []
        if self.sequence != other.sequence:
            found.append(f"number: #{self.sequence} / #{other.sequence}")
        if self.facts != other.facts:
            pairs = zip(_FACTS, self.hints, other.hints, strict=True)
            # Alike by chance once in 65,536: then any of them may be it.
            named = [fact for fact, mine, theirs in pairs if mine != theirs]
            found += named or [" or ".join(_FACTS)]
        if self.phase != other.phase:
            found.append(f"phase: {PHASES[self.phase]} / {PHASES[other.phase]}")
        if self.grad != other.grad and (self.smooth or other.smooth):
            found.append(f"grad: {_MODES[self.grad]} / {_MODES[other.grad]}")
        if self.discover != other.discover:
            found.append(f"shapes: {_SHAPES[self.discover]} / {_SHAPES[other.discover]}")
        elif (self.sends, self.expects) != (other.expects, other.sends):
            found.append(self._tensors(other))
        return found

    def _tensors(self, other: Header) -> str:
        ways = []
        if self.sends != other.expects:
            ways.append("what it awaits is not what is sent here")
        if self.expects != other.sends:
            count = f"{other.leaves} tensor{'' if other.leaves == 1 else 's'}"
            ways.append(f"what it sends ({count}) is not what is awaited here")
        return f"tensors: {' and '.join(ways)}"

    def __str__(self) -> str:
        """Return where the sender is, as far as a header says."""
        grad = f", {_MODES[self.grad]}" if self.smooth else ""
        return f"exchange #{self.sequence} {self.label!r} ({PHASES[self.phase]}{grad})"


def _printable(label: bytes) -> str:
    text = label.rstrip(b"\0").decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)
