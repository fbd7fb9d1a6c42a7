"""Agreement before the payload: each rank shows its header to its peers and looks at theirs.

Where messages carry tags, a digest in the tag keeps exchanges apart, and headers are sent only on
demand (``verify="always"``). A backend without tags (NCCL) would take any message for any other,
so there two ranks agree when something new travels between them.

A header goes to each *peer*, both ways, not down each lane: so a rank that only sends sees that
its receiver is elsewhere, and the two ends of every pair raise together. Its tag holds neither
number nor step: the header of whatever a peer does next is what comes, and is compared. For the
same reason "new" is asked for each pair of ranks, never for a call as a whole: with uneven shapes a
call may be new on one rank and known to its neighbour, but what travels between the two is new
to both or to neither.

Headers belong to the flight that they precede: its deadline, its number, its trace; its buffers are
held where it fails. They are counted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import caller
from .errors import ExchangeMismatch
from .header import SIZE, Header, Pair, digest
from .transport import Post

if TYPE_CHECKING:
    from .call import Call
    from .engine import Engine
    from .flight import Flight
    from .signature import Signature, Verify
    from .transport import Transport, Work

__all__ = [
    "DESCRIPTION_TAG",
    "HEADER_TAG",
    "Agreement",
    "agree_always",
    "agreement",
    "compare_headers",
    "pairs_of",
    "signature_of",
    "swap",
]

Agreement = Callable[["Flight"], None]

# Payload tags end in a number and a lane below 20 bits of digest: one of them is this one, with
# this number, once in 2**30. (0x7FFFFFF0 belongs to an abort.)
HEADER_TAG, DESCRIPTION_TAG = 0x7FFFFF00, 0x7FFFFF02
# A pair forgets what it agreed on when it is so much: both ends at the same moment.
_MOST_AGREED = 4096


def agreement(transport: Transport, verify: Verify) -> Agreement | None:
    """Return what is to run before the payload of each flight, if anything is.

    A transport that is told the signatures (the simulator) compares them itself, word by word.
    """
    if transport.size == 1:
        return None
    if verify == "always":
        return agree_always
    if verify == "auto" and transport.batch is not None and transport.announce is None:
        return agree_when_new
    return None


def agree_always(flight: Flight) -> None:
    """Compare headers with every peer of a flight that has not been agreed on.

    Raises:
        ExchangeMismatch: A peer is in another exchange.
    """
    if not flight.agreed:
        compare_headers(flight, pairs_of(flight.call))


def agree_when_new(flight: Flight) -> None:
    """Compare headers with each peer with whom this was never exchanged before.

    Raises:
        ExchangeMismatch: A peer is in another exchange.
    """
    if flight.agreed:
        return
    agreed = flight.engine.state.agreed
    new = [pair for pair in pairs_of(flight.call) if pair.key not in agreed.get(pair.peer, ())]
    compare_headers(flight, new)
    for pair in new:
        known = agreed.setdefault(pair.peer, set())
        if len(known) >= _MOST_AGREED:
            known.clear()
        known.add(pair.key)


def compare_headers(
    flight: Flight, pairs: Sequence[Pair], describes: Mapping[int, int] | None = None
) -> dict[int, Header]:
    """Show a header to each peer, and return theirs, which fit.

    Args:
        flight: Begun, and not posted.
        pairs: One for each peer.
        describes: Where shapes are discovered: bytes of the description for each peer.

    Raises:
        ExchangeMismatch: A peer is in another exchange.
    """
    if not pairs:
        return {}
    signature = signature_of(flight)
    mine = {
        pair.peer: Header.of(
            signature,
            pair,
            phase=flight.call.phase,
            grad=flight.call.mode,
            discover=describes is not None,
            describes=describes[pair.peer] if describes is not None else 0,
        )
        for pair in pairs
    }
    theirs: dict[int, Header] = {}

    def check(peer: int, data: bytes) -> None:
        try:
            header = Header.unpack(data)
        except ValueError as error:
            raise ExchangeMismatch(
                f"{signature}: rank {peer} does not agree on it first: {error}"
                f" {_here(flight.engine)}; every rank must use the same verify= and shapes=, and"
                " the same version of this library"
            ) from error
        if differences := mine[peer].differences(header):
            raise ExchangeMismatch(
                f"{signature}: rank {peer} is in another exchange: they differ (here / there) in"
                f" {'; '.join(differences)}; rank {peer} is at {header} {_here(flight.engine)};"
                " every rank must make the same exchanges in the same order, with the same shapes"
                " and dtypes"
            )
        theirs[peer] = header

    swap(
        flight,
        HEADER_TAG,
        {peer: header.pack() for peer, header in mine.items()},
        dict.fromkeys(mine, SIZE),
        check,
    )
    return theirs


def swap(
    flight: Flight,
    tag: int,
    outgoing: Mapping[int, bytes],
    lengths: Mapping[int, int],
    check: Callable[[int, bytes], None],
) -> None:
    """Send bytes to some peers and receive bytes from some, within the deadline of a flight.

    Args:
        flight: Begun, and not posted.
        tag: Of all messages.
        outgoing: By peer.
        lengths: Of what is awaited, by peer.
        check: Told what came from whom, as soon as it can be read; whatever it raises ends the
            wait: what differs is known before all have spoken.
    """
    engine = flight.engine
    device, state = engine.device, engine.state
    into = {p: torch.empty(n, dtype=torch.uint8, device=device) for p, n in lengths.items()}
    posts = [Post("recv", buffer, peer, tag) for peer, buffer in into.items()]
    posts += [Post("send", _as_tensor(data, device), p, tag) for p, data in outgoing.items()]
    works: list[Work] = []
    flight.works, flight.early = works, posts  # held if this fails: gloo may still write there
    state.waiting = flight
    _post(engine.transport, posts, works)
    one_by_one = len(works) == len(posts)
    for post, work in zip(posts if one_by_one else [None] * len(works), works, strict=True):
        # Where a wait only orders streams, the host must be held until it can read what came.
        flight.awaited = work
        getattr(work, "arrive", work.wait)(flight.deadline.remaining(flight.elapsed))
        if post is not None and post.kind == "recv":
            check(post.peer, _as_bytes(post.tensor))
    if not one_by_one:
        for peer, buffer in into.items():
            check(peer, _as_bytes(buffer))
    flight.works, flight.early, flight.awaited = (), (), None
    state.waiting = None


def pairs_of(call: Call) -> list[Pair]:
    """Return what travels between this rank and each of its peers; made once for a call.

    Backward, a rank that has nothing to differentiate does not take part; forward, all do.
    """
    if call.pairs is None:
        call.pairs = [pair for peer in call.peers if (pair := _pair(call, peer)) is not None]
    return call.pairs


def signature_of(flight: Flight) -> Signature:
    """Return what the peers' exchange must agree with."""
    where = flight.record.where if flight.record is not None else caller()
    return flight.call.signature(flight.sequence, flight.engine.state.step, where)


def _pair(call: Call, peer: int) -> Pair | None:
    lanes = list(zip(call.plan.lanes, call.sends, call.recvs, call.trees, strict=True))
    out = [(lane.key, tree, leaves) for lane, leaves, _, (tree, _) in lanes
           if lane.destination == peer]  # fmt: skip
    into = [(lane.key, tree, leaves) for lane, _, leaves, (_, tree) in lanes
            if lane.source == peer]  # fmt: skip
    if call.phase != 0 and not any(leaves for *_, leaves in (*out, *into)):
        return None
    smooth_out = any(leaf.differentiable for *_, leaves in out for leaf in leaves)
    smooth_in = any(leaf.differentiable for *_, leaves in into for leaf in leaves)
    (sends, expects) = (_digest_of(call, lanes_) for lanes_ in (out, into))
    grad = call.grad and (smooth_out or smooth_in)
    facts = (call.plan.op, call.name, call.topology, call.phase, grad)
    # Both ends forget at the same moment, so the key need not be alike on both.
    key = digest((facts, sends, expects))
    return Pair(peer, sends, expects, sum(len(leaves) for *_, leaves in out), smooth_out, key)


def _digest_of(call: Call, lanes: Sequence[tuple[int, str, tuple[object, ...]]]) -> int:
    """Return the digest of what must be alike on both ends: counts where shapes are discovered."""
    return digest(
        [
            (key, tree, len(leaves) if call.discovers else list(map(str, leaves)))
            for key, tree, leaves in lanes
        ]
    )


def _post(transport: Transport, posts: Sequence[Post], works: list[Work]) -> None:
    if transport.batch is not None:
        works += transport.batch(posts)
        return
    for kind, tensor, peer, tag in posts:
        works.append((transport.recv if kind == "recv" else transport.send)([tensor], peer, tag))


def _as_tensor(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _as_bytes(buffer: Tensor) -> bytes:
    return bytes(buffer.tolist())


def _here(engine: Engine) -> str:
    return f"(rank {engine.rank} of {engine.size})"
