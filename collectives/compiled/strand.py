"""Where the token and the ticket stand between two exchanges of traced code."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..tracing import is_exporting, recorder
from .at_trace import inside_another

if TYPE_CHECKING:
    from ..chain import Chain

__all__ = ["Strand", "strand_in"]

# By what records it. What was recorded runs without the chain of the process that did.
_recorded: weakref.WeakKeyDictionary[object, Strand] = weakref.WeakKeyDictionary()


class Strand:
    """What a graph has instead of a chain if it is a thing of its own (``export``, ``make_fx``)."""

    root: Tensor | None = None
    token: Tensor | None = None
    ticket: Tensor | None = None
    joined = False
    chained = False  # whether it is a part of the chain


class Branch(Strand):
    """Within an operator that must not write to anything outside, such as a checkpoint.

    Its exchanges come after those before it. Nothing comes after them but by what they bring.
    """

    chained = True

    def __init__(self, chain: Chain) -> None:
        self.root, self.token, self.ticket = chain.root, chain.token, chain.ticket


def strand_in(chain: Chain) -> Chain | Strand:
    """Return where to find the token of the exchange before: the chain, but for graphs to keep."""
    if is_exporting():
        return Strand()
    if torch.compiler.is_dynamo_compiling():
        return Branch(chain) if inside_another() else chain
    mode = recorder()
    return chain if mode is None else _recorded_by(mode)


def _recorded_by(mode: object) -> Strand:
    strand = _recorded.get(mode)
    if strand is None:
        strand = _recorded[mode] = Strand()
        # A backward may be recorded with the forward: then it has a chain of its own.
        strand.root = strand.token = torch.empty(0, requires_grad=True, device="cpu")
    return strand
