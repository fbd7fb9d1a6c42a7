"""What the two ends of an exchange must agree on.

The signature of an exchange never travels: 20 bits of its digest are part of every message's tag,
so that a message of another exchange cannot match (missed with p = 2**-20 per wrong message). The
simulator compares signatures themselves and says in words what differs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal

__all__ = ["DISCOVERY", "NO_GRADIENT", "PHASES", "Signature", "Verify"]

Verify = Literal["auto", "always", "off"]

PHASES = ("forward", "backward", "double backward", "tangent")
# Instead of a grad mode where nothing can have a gradient: the modes of two ranks may differ.
NO_GRADIENT = "no gradient"
# Of how many edges the words for tensors are: a rank in the middle has more of them than others.
_COUNTS = re.compile(r" on \d+ edges| \| \.\.\. \d+ more edges")
# Instead of the phase while shapes are being discovered; the payload has the same number.
DISCOVERY = "discovery"


@dataclass(frozen=True, slots=True)
class Signature:
    """One exchange on one rank.

    Args:
        op: The operation with its arguments, such as ``shift(offset=1, axis='ring')``.
        name: Of the Exchange.
        topology: Its repr.
        phase: One of :data:`PHASES`, or :data:`DISCOVERY`.
        grad: "grad" or "no_grad": the grad mode of the forward call; or :data:`NO_GRADIENT`.
        step: As told by ``mark_step``.
        tensors: What leaves and arrives, edge by edge, in words; and how trees are built.
        sequence: Number of the exchange on this group; the backward keeps its forward's.
        where: ``file:line`` of the caller, when known.
        verify: Of the Exchange: how it is made sure that all this is alike.
    """

    op: str
    name: str
    topology: str
    phase: str
    grad: str
    step: tuple[int, ...]
    tensors: str
    sequence: int
    where: str = ""
    verify: str = "auto"

    def __str__(self) -> str:
        """Return one line for error texts."""
        label = f"{self.op} of {self.name!r}" if self.name else self.op
        step = f", step {'/'.join(map(str, self.step))}" if self.step else ""
        where = f", {self.where}" if self.where else ""
        details = f"{self.phase}, {self.grad}{step}, {self.tensors}{where}"
        return f"exchange #{self.sequence} {label} ({details})"

    def differences(self, other: Signature) -> list[str]:
        """Return, field by field, what differs between this exchange and ``other``."""
        return [
            f"{name}: {getattr(self, name)} / {getattr(other, name)}"
            for name in self.differing(other)
        ]

    def differing(self, other: Signature) -> list[str]:
        """Return the names of the fields in which the two are not one exchange."""
        ignored = {"where"}
        if _kinds(self.tensors) == _kinds(other.tensors):
            ignored.add("tensors")
        if NO_GRADIENT in (self.grad, other.grad):
            ignored.add("grad")
        return [
            field.name
            for field in fields(self)
            if field.name not in ignored and getattr(self, field.name) != getattr(other, field.name)
        ]


def _kinds(tensors: str) -> str:
    """Return the words for tensors without what two ranks of one exchange may differ in."""
    kinds = _COUNTS.sub("", tensors)
    sent, _, awaited = kinds.partition(" for ")
    return sent if sent == awaited else kinds
