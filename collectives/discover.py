"""``shapes="discover"``: what arrives is sized by what its sender says of it.

Three rounds under one number and one deadline: headers, which agree on the operation and on the
number of tensors on each lane; descriptions, from each sender to its receiver; then the payload,
as an ordinary call whose shapes are known now. So gradients, packs, open ends and self lanes need
nothing of their own, and a backward discovers nothing.

``shapes="once"`` keeps the answer, by what this rank sends. That is safe where a payload that its
receiver does not expect cannot match: its shapes are in the tag, or in headers that are compared
first. A rank whose shapes are new asks, and its neighbours do not answer: a mismatch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .agree import (
    DESCRIPTION_TAG,
    HEADER_TAG,
    agree_always,
    compare_headers,
    pairs_of,
    signature_of,
    swap,
)
from .call import MOST_CALLS, Call, Specs
from .description import decode, encode
from .errors import ArgumentError, ExchangeMismatch
from .flight import Flight
from .header import SIZE
from .messages import Leaf, PackedMessage, SingleMessage
from .ranges import ranged
from .signature import DISCOVERY, NO_GRADIENT
from .trace import Trace
from .transforms import outside

if TYPE_CHECKING:
    from .binding import Binding, Route
    from .context import Placed
    from .engine import Engine
    from .plan import Plan
    from .signature import Signature

__all__ = ["Draft", "check_draft", "discover", "notices", "refuse_sizes"]


class Draft(Call):
    """What is known of a call before the shapes of what arrives: how many tensors on each lane."""

    discovers = True

    @property
    def sent(self) -> list[SingleMessage | PackedMessage]:
        """One header for each peer: whoever compares what ranks have posted sees no shapes."""
        leaf = Leaf((SIZE,), torch.uint8)
        return [SingleMessage(0, peer, HEADER_TAG, leaf) for peer in self.peers]

    @property
    def awaited(self) -> list[SingleMessage | PackedMessage]:
        """As :attr:`sent`."""
        return self.sent

    def signature(self, sequence: int, step: tuple[int, ...], where: str) -> Signature:
        """Return what the other ranks' exchange must agree with; shapes and dtypes need not."""
        signature = super().signature(sequence, step, where)
        return replace(signature, phase=DISCOVERY, grad=NO_GRADIENT, tensors="shapes unknown")


def check_draft(binding: Binding, plan: Plan, sends: Specs) -> None:
    """Refuse what cannot be described, on one rank as on many."""
    try:
        encode([leaf for lane in sends for leaf in lane])
    except ValueError as error:
        raise ArgumentError(
            f"{plan.op}: shapes='discover' cannot describe this tree {binding.here}: {error}; give"
            " the shapes that arrive through like="
        ) from error


def refuse_sizes(binding: Placed, plan: Plan, argument: str) -> None:
    """Refuse an argument that says what arrives.

    Raises:
        ArgumentError: Always.
    """
    raise ArgumentError(
        f"{plan.op}: {argument}= says what arrives, and shapes='discover' asks the sender"
        f" {binding.here}; leave one of them out"
    )


def notices(engine: Engine, *, signed: bool) -> bool:
    """Whether shapes that hold no longer are noticed: they are in the tags, or in headers.

    Without either (NCCL, ``verify="off"``) a rank that asks anew would meet one that does not, and
    what it asks would be taken for data.
    """
    return (signed and engine.transport.batch is None) or engine.agree is agree_always


def discover(draft: Flight, route: Route) -> Flight:
    """Return the flight of the payload; its shapes are asked of the peers, or known.

    Args:
        draft: Of a :class:`Draft`; not started, and not to be.
        route: Where calls are kept.

    Raises:
        ExchangeMismatch: A peer is in another exchange, or sends another number of tensors.
    """
    engine, state = draft.engine, draft.engine.state
    once = route.once and notices(engine, signed=draft.call.verify != "off")
    mine = (torch.is_grad_enabled(), draft.call.sends)
    if once and (known := route.known.get(mine)) is not None:
        return Flight(engine, known, draft.sequence, draft.deadline, None, draft.fill)
    draft.begun = time.monotonic()
    draft.trace = Trace(draft.call, draft.sequence, state.step, draft.begun)
    state.history.append(draft.trace)
    if engine.transport.announce is not None:
        engine.transport.announce(signature_of(draft))
    try:
        with ranged(draft.call, "shapes"), outside():
            recvs = _ask(draft)
    except BaseException as error:
        failure = engine.failure(error, draft)
        if failure is error:
            raise
        raise failure from error
    draft.trace.ended = time.monotonic()
    call = _keep(route.calls, (draft.call, recvs), draft.call, recvs)
    if once:
        # Apart from the calls: ranks that ask together must forget at the same moment.
        if len(route.known) >= MOST_CALLS:
            route.known.clear()
        route.known[mine] = call
    flight = Flight(engine, call, draft.sequence, draft.deadline, None, draft.fill)
    flight.begun, flight.agreed = draft.begun, True
    return flight


def _keep(calls: dict[object, Call], key: object, draft: Call, recvs: Specs) -> Call:
    """Return the call of the payload, made where it is new."""
    if key in calls:
        return calls[key]
    if len(calls) >= MOST_CALLS:
        calls.clear()
    calls[key] = Call(
        draft.plan,
        draft.sends,
        recvs,
        name=draft.name,
        topology=draft.topology,
        grad=torch.is_grad_enabled(),
        verify=draft.verify,
        owner=draft.owner,
        trees=draft.trees,
    )
    return calls[key]


def _ask(draft: Flight) -> Specs:
    """Return, for each lane, what arrives on it."""
    call = draft.call
    described = {peer: encode(_leaves_to(call, peer)) for peer in call.peers}
    lengths = {peer: len(description) for peer, description in described.items()}
    headers = compare_headers(draft, pairs_of(call), lengths)
    arriving: dict[int, tuple[Leaf, ...]] = {}

    def read(peer: int, data: bytes) -> None:
        try:
            arriving[peer] = decode(data, headers[peer].leaves)
        except ValueError as error:
            raise ExchangeMismatch(
                f"{signature_of(draft)}: what rank {peer} says of its tensors makes no sense (rank"
                f" {draft.engine.rank} of {draft.engine.size}): {error}; do all ranks run the same"
                " versions?"
            ) from error

    outgoing = {peer: description for peer, description in described.items() if description}
    awaited = {peer: header.describes for peer, header in headers.items() if header.describes}
    if outgoing or awaited:
        swap(draft, DESCRIPTION_TAG, outgoing, awaited, read)
    return _by_lane(call, arriving)


def _leaves_to(call: Call, peer: int) -> Sequence[Leaf]:
    lanes = zip(call.plan.lanes, call.sends, strict=True)
    return [leaf for lane, leaves in lanes if lane.destination == peer for leaf in leaves]


def _by_lane(call: Call, arriving: Mapping[int, tuple[Leaf, ...]]) -> Specs:
    """Deal out what arrives to the lanes: as many tensors on each as this rank expects on it."""
    left = {peer: iter(leaves) for peer, leaves in arriving.items()}
    return tuple(
        tuple(next(left[lane.source]) for _ in built) if lane.source in left else built
        for lane, built in zip(call.plan.lanes, call.recvs, strict=True)
    )
