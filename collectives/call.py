"""One operation with one set of shapes: which messages it takes, computed once and cached.

A :class:`Call` turns a plan and the shapes of what leaves and arrives into flat tables that the
engine walks without thinking: what to receive into which output, what to send from which input,
what to copy, what to fill. Small leaves of one peer and dtype travel as one message (100 tensors
of 4 KiB: 13 times faster than one by one); larger ones go singly, without a copy.
"""

from __future__ import annotations

import zlib
from itertools import groupby
from typing import TYPE_CHECKING

from .messages import (
    LONG,
    Leaf,
    Pack,
    PackedMessage,
    Parcel,
    SingleMessage,
    packed_groups,
    parcels_of,
)
from .plan import Lane, Plan
from .recycling import WORTH_IT
from .signature import NO_GRADIENT, PHASES, Signature, Verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .header import Pair
    from .state import Counters

__all__ = ["MOST_CALLS", "Call"]

DIGEST_BITS, SEQUENCE_BITS = 20, 10  # with one bit for the lane: the 31 bits of a gloo tag


Specs = tuple[tuple[Leaf, ...], ...]
# Of one operation: shapes that change at every step would fill the cache, and a call costs about
# 50 us to make anew.
MOST_CALLS = 256
_MOST_LEAVES, _MOST_RUNS = 4, 6  # that are shown in words


class Call:
    """The messages of one operation on one rank.

    Args:
        plan: Who sends what to whom.
        sends: For each lane, what leaves.
        recvs: For each lane, what is expected.
        name: Of the Exchange.
        topology: Its repr.
        grad: Whether grad mode was on in the forward call (kept as ``mode``): it takes part in
            matching where there is anything to differentiate (then ``grad`` is set).
        phase: Index into ``signature.PHASES``.
        verify: Of the Exchange; unless it is "off", the signature's digest is in the tags.
        owner: Number of the Exchange on its group, in the order of their first calls.
        trees: Forward, for each lane: how the tree is built that leaves, and the one that arrives,
            in words.

    Inputs and outputs are numbered through all lanes. ``send_singles`` and ``recv_singles`` hold
    the tensors that go by themselves, ``send_packs`` and ``recv_packs`` the rest, ``copies`` pairs
    of (input, output) that stay on this rank, ``fills`` the outputs beyond an open end.
    """

    discovers = False

    def __init__(
        self,
        plan: Plan,
        sends: Specs,
        recvs: Specs,
        *,
        name: str = "",
        topology: str = "",
        grad: bool = False,
        phase: int = 0,
        verify: Verify = "auto",
        owner: int = 0,
        trees: tuple[tuple[str, str], ...] | None = None,
    ) -> None:
        self.plan, self.sends, self.recvs = plan, sends, recvs
        self.name, self.topology, self.mode, self.phase = name, topology, grad, phase
        self.verify, self.owner = verify, owner
        self.trees = (("", ""),) * len(plan.lanes) if trees is None else trees
        self.counters: Counters | None = None  # of its operation, once it was started
        self.pairs: list[Pair] | None = None  # what headers say of it, once they have been asked
        self.order: list[int] | None = None  # of its works, as they are waited for; []: as posted
        self.inputs = [leaf for lane in sends for leaf in lane]
        self.outputs = [leaf for lane in recvs for leaf in lane]
        self.differentiable_inputs = _differentiable(self.inputs)
        self.differentiable_outputs = _differentiable(self.outputs)
        self.differentiable = bool(self.differentiable_inputs or self.differentiable_outputs)
        self.grad = grad and self.differentiable
        self.constant_outputs = sorted(
            set(range(len(self.outputs))) - set(self.differentiable_outputs)
        )
        self.copies: list[tuple[int, int]] = []
        self.fills: list[tuple[int, Leaf]] = []
        self.send_singles: list[SingleMessage] = []
        self.recv_singles: list[SingleMessage] = []
        self.send_packs: list[PackedMessage] = []
        self.recv_packs: list[PackedMessage] = []
        outgoing: dict[int, list[Parcel]] = {}
        incoming: dict[int, list[Parcel]] = {}
        first_in = first_out = 0
        for lane, out, into, trees_ in zip(plan.lanes, sends, recvs, self.trees, strict=True):
            self._add_lane(
                lane,
                parcels_of(lane.key, out, first_in, trees_[0]),
                parcels_of(lane.key, into, first_out, trees_[1]),
                outgoing,
                incoming,
            )
            first_in += len(out)
            first_out += len(into)
        for peer, parcels in outgoing.items():
            self._add_messages(peer, parcels, self.send_singles, self.send_packs)
        for peer, parcels in incoming.items():
            self._add_messages(peer, parcels, self.recv_singles, self.recv_packs)
        # What the transport writes into, with no copy in between that autograd would see.
        self.written = [message.position for message in self.recv_singles]
        self.unpacked_later = {i for message in self.recv_packs for i in message.pack.indices}
        self.conjugates = any(leaf.dtype.is_complex for leaf in self.inputs)
        self.stays = bool(self.copies or self.fills)
        self.messages_sent = len(self.send_singles) + len(self.send_packs)
        self.peers = sorted(
            {
                peer
                for lane in plan.lanes
                for peer in (lane.source, lane.destination)
                if peer is not None and peer != plan.rank
            }
        )
        self.bytes_sent = sum(m.leaf.nbytes for m in self.send_singles) + sum(
            m.pack.nbytes for m in self.send_packs
        )
        self.bytes_received = sum(m.leaf.nbytes for m in self.recv_singles) + sum(
            m.pack.nbytes for m in self.recv_packs
        )
        self.large = any(leaf.nbytes >= WORTH_IT for leaf in self.outputs)
        # All together: where one stands still, those before it may have filled the connection.
        self.long = max(self.bytes_sent, self.bytes_received) >= LONG
        self.batches: dict[int, Call] = {}  # the same with a batch in front, by its size
        self._reverse: Call | None = None
        self._tangent: Call | None = None

    def _add_lane(
        self,
        lane: Lane,
        out: list[Parcel],
        into: list[Parcel],
        outgoing: dict[int, list[Parcel]],
        incoming: dict[int, list[Parcel]],
    ) -> None:
        if lane.source == self.plan.rank:
            self.copies += [(a.position, b.position) for a, b in zip(out, into, strict=True)]
            return
        if lane.source is None:
            self.fills += [(parcel.position, parcel.leaf) for parcel in into]
        else:
            incoming.setdefault(lane.source, []).extend(into)
        if lane.destination is not None:
            outgoing.setdefault(lane.destination, []).extend(out)

    def _add_messages(
        self,
        peer: int,
        parcels: list[Parcel],
        singles: list[SingleMessage],
        packs: list[PackedMessage],
    ) -> None:
        """Make messages of all that goes to, or comes from, one peer: alike on both ends."""
        groups = packed_groups(parcels)
        packed = {parcel.position for group in groups for parcel in group}
        for parcel in parcels:
            if parcel.position not in packed:
                tag = self._tag("single", [parcel])
                singles.append(SingleMessage(parcel.position, peer, tag, parcel.leaf))
        for group in groups:
            pack = Pack(
                tuple(parcel.position for parcel in group),
                tuple(parcel.leaf.shape for parcel in group),
                group[0].leaf.dtype,
            )
            packs.append(PackedMessage(pack, peer, self._tag("pack", group)))

    def _tag(self, kind: str, parcels: list[Parcel]) -> int:
        """Return a tag with an empty sequence field; see ``collectives.signature``."""
        digest = 0
        if self.verify != "off":
            # Of this message alone: another of the call may carry what this end cannot see.
            grad = self.grad and any(parcel.leaf.differentiable for parcel in parcels)
            facts = (self.topology, self.name, self.plan.op, self.phase, grad, kind)
            contents = [(p.key, p.part, str(p.leaf), p.tree) for p in parcels]
            digest = zlib.crc32(repr((facts, contents)).encode()) & ((1 << DIGEST_BITS) - 1)
        return digest << (SEQUENCE_BITS + 1) | (parcels[0].key & 1)

    @property
    def sent(self) -> list[SingleMessage | PackedMessage]:
        """All messages that leave, in the order of posting."""
        return [*self.send_singles, *self.send_packs]

    @property
    def awaited(self) -> list[SingleMessage | PackedMessage]:
        """All messages that arrive, in the order of posting."""
        return [*self.recv_singles, *self.recv_packs]

    def reverse(self) -> Call:
        """Return the adjoint: it carries the gradients of what is differentiable."""
        if self._reverse is None:
            self._reverse = self._derived(
                self.plan.reverse(), self.recvs, self.sends, _NEXT_PHASE[self.phase]
            )
        return self._reverse

    def tangent(self) -> Call:
        """Return the linear part: it carries the tangents of what is differentiable."""
        if self._tangent is None:
            self._tangent = self._derived(
                self.plan, self.sends, self.recvs, PHASES.index("tangent")
            )
        return self._tangent

    def _derived(self, plan: Plan, sends: Specs, recvs: Specs, phase: int) -> Call:
        return Call(
            plan,
            tuple(tuple(leaf for leaf in lane if leaf.differentiable) for lane in sends),
            tuple(tuple(leaf for leaf in lane if leaf.differentiable) for lane in recvs),
            name=self.name,
            topology=self.topology,
            grad=self.grad,
            phase=phase,
            verify=self.verify,
            owner=self.owner,
        )

    def signature(self, sequence: int, step: tuple[int, ...], where: str) -> Signature:
        """Return what the other ranks' exchange of this number must agree with."""
        sent, awaited = self._in_words()
        return Signature(
            op=self.plan.op,
            name=self.name,
            topology=self.topology,
            phase=PHASES[self.phase],
            grad=NO_GRADIENT if not self.differentiable else "grad" if self.grad else "no_grad",
            step=step,
            tensors=sent if sent == awaited else f"{sent} for {awaited}",
            sequence=sequence,
            where=where,
            verify=self.verify,
        )

    def _in_words(self) -> tuple[str, str]:
        """Return what leaves and what arrives, edge by edge.

        Not that nothing leaves on an edge that only arrives here: the other ranks have other edges.
        """
        trees = self.trees
        if self.plan.operation in _OF_LISTS:
            trees = (("", ""),) * len(trees)
        lanes = list(zip(self.plan.lanes, self.sends, self.recvs, trees, strict=True))
        sent = [_lane_in_words(out, tree[0]) for lane, out, into, tree in lanes
                if out or lane.destination is not None or not into]  # fmt: skip
        awaited = [_lane_in_words(into, tree[1]) for lane, out, into, tree in lanes
                   if into or lane.source is not None or not out]  # fmt: skip
        return _runs_in_words(sent), _runs_in_words(awaited)


# These cut what they are given into lists of tensors, whatever their caller's tree is.
_OF_LISTS = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter",
     "neighbor_allreduce", "gossip_", "consensus_distance"}
)  # fmt: skip
# A backward inside a backward alternates; the forward's own phase is never taken again.
_NEXT_PHASE = {0: 1, 1: 2, 2: 1, 3: 1}


def _differentiable(leaves: list[Leaf]) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if leaf.differentiable]


def _lane_in_words(leaves: tuple[Leaf, ...], tree: str) -> str:
    shown = ", ".join(map(str, leaves[:_MOST_LEAVES]))
    more = f", ... {len(leaves)} tensors" if len(leaves) > _MOST_LEAVES else ""
    return f"({shown}{more})" + (f" as {tree}" if tree else "")


def _runs_in_words(lanes: Sequence[str]) -> str:
    """Return what is on each edge in its order, several that are alike in a row only once."""
    runs = [(words, len(list(alike))) for words, alike in groupby(lanes)]
    shown = [words + (f" on {count} edges" if count > 1 else "")
             for words, count in runs[:_MOST_RUNS]]  # fmt: skip
    more = sum(count for _, count in runs[_MOST_RUNS:])
    return " | ".join([*shown, *([f"... {more} more edges"] if more else [])])
