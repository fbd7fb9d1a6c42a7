"""Runs one call on one transport: post everything, wait for everything, unpack.

Receives are posted before sends: gloo's send is a rendezvous, and a receive that is already there
saves a round of its event loop. Self sends are copies, open ends are filled. Every wait has the
deadline of its exchange. The first failure breaks the group for good: a gloo pair that has timed
out is closed, and whatever came next would fail with a text that hides the cause.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from .chain import caller
from .dtypes import as_memory
from .failures import failure_of
from .flight import NOTHING, Flight
from .recycling import WORTH_IT
from .state import SEQUENCE_MASK, Counters
from .trace import Trace
from .transport import Post

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call import Call
    from .state import GroupState
    from .transport import Transport, Work

__all__ = ["Engine"]

W = TypeVar("W")


class Engine:
    """Runs calls.

    Args:
        transport: Moves the bytes.
        device: Where tensors live.
        state: Of the group.

    ``agree``, where it is set, compares each flight with the peers' before it is posted.
    """

    def __init__(self, transport: Transport, device: torch.device, state: GroupState) -> None:
        self.transport, self.device, self.state = transport, device, state
        self.rank, self.size = transport.rank, transport.size
        self.counters: defaultdict[str, Counters] = defaultdict(Counters)  # by operation
        self._announce = transport.announce
        self._send, self._recv, self._batch = transport.send, transport.recv, transport.batch
        self._flush: Callable[[], None] | None = None
        self.near: frozenset[int] = frozenset()  # peers that are reached past the backend
        self.host = -1  # the peer that mostly holds the rendezvous store
        self.agree: Callable[[Flight], None] | None = None

    def reconnect(self, near: frozenset[int], flush: Callable[[], None]) -> None:
        """Take note that the transport goes another way from now on.

        Args:
            near: The peers to which it does.
            flush: Called when all messages of an exchange have been posted.
        """
        self._send, self._recv = self.transport.send, self.transport.recv
        self.near, self._flush = near, flush

    def start(self, flight: Flight, inputs: Sequence[Tensor]) -> Flight:
        """Post all messages of a flight.

        Args:
            flight: Made, and not started.
            inputs: One tensor per input of its call.
        """
        call = flight.call
        if flight.outs is not None:
            results = list(flight.outs)
        elif call.large:
            results = self._places(call)
        else:
            device, later = self.device, call.unpacked_later
            # `size=` spares the parser of arguments a wrong try: a third of the time
            results = [
                NOTHING if i in later else torch.empty(size=shape, dtype=dtype, device=device)
                for i, (shape, dtype) in enumerate(call.outputs)
            ]
        begun = flight.begun if flight.agreed else time.monotonic()
        flight.inputs, flight.results, flight.begun = inputs, results, begun
        trace = flight.trace = Trace(call, flight.sequence, self.state.step, begun)
        self.state.history.append(trace)
        if self._announce is not None:
            where = flight.record.where if flight.record is not None else caller()
            self._announce(call.signature(flight.sequence, self.state.step, where))
        if call.stays:
            _copy_and_fill(flight)
        try:
            if self.agree is not None:
                self.agree(flight)
            if self._batch is None:
                works: list[Work] = []
                flight.works = works  # what was posted, should a later message not be
                self._post(flight, self._send, self._recv, works)
                if self._flush is not None:
                    self._flush()
            else:
                flight.works = self._batch(self._in_batch(flight))
        except BaseException as error:
            failure = self.failure(error, flight)
            if failure is error:
                raise
            raise failure from error
        self._count(call)
        return flight

    def _places(self, call: Call) -> list[Tensor]:
        """Return the results of a call of which some are large."""
        device, later, recycle = self.device, call.unpacked_later, self.state.recycling.empty
        return [
            NOTHING if i in later
            else recycle(leaf) if leaf.nbytes >= WORTH_IT and device.type == "cpu"
            else torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            for i, leaf in enumerate(call.outputs)
        ]  # fmt: skip

    def _in_batch(self, flight: Flight) -> list[Post]:
        sends: list[Post] = []
        receives: list[Post] = []
        self._post(
            flight,
            lambda tensors, peer, tag: sends.append(Post("send", tensors[0], peer, tag)),
            lambda tensors, peer, tag: receives.append(Post("recv", tensors[0], peer, tag)),
            [],
        )
        return sends + receives

    def _post(
        self,
        flight: Flight,
        send: Callable[[list[Tensor], int, int], W],
        recv: Callable[[list[Tensor], int, int], W],
        works: list[W],
    ) -> None:
        """Post the messages of a flight one by one, and append what each post gives."""
        call, inputs, results, gaps = flight.call, flight.inputs, flight.results, flight.gaps
        conjugates = call.conjugates
        mix = self.state.step_tag ^ ((flight.sequence & SEQUENCE_MASK) << 1)
        for position, peer, tag, leaf in call.recv_singles:
            target = results[position]
            if gaps and not target.is_contiguous():
                target = flight.detour(target, leaf)
            works.append(recv([target], peer, tag ^ mix))
        for pack, peer, tag in call.recv_packs:
            packed = flight.take(pack, received=True)
            works.append(recv([packed.flat], peer, tag ^ mix))
        for position, peer, tag, _ in call.send_singles:
            tensor = inputs[position]
            if not tensor.is_contiguous() or tensor.is_neg() or (conjugates and tensor.is_conj()):
                tensor = _dense(tensor)
            works.append(send([tensor], peer, tag ^ mix))
        for pack, peer, tag in call.send_packs:
            packed = flight.take(pack, received=False)
            packed.fill([inputs[i] for i in pack.indices])
            works.append(send([packed.flat], peer, tag ^ mix))

    def _count(self, call: Call) -> None:
        counters = call.counters
        if counters is None:
            counters = call.counters = self.counters[call.plan.operation]
        counters.exchanges += 1
        counters.messages_sent += call.messages_sent
        counters.bytes_sent += call.bytes_sent
        counters.bytes_received += call.bytes_received

    def failure(self, error: BaseException, flight: Flight) -> BaseException:
        """Return what to raise for an error of the transport, and break the group's state."""
        return failure_of(self, flight, error)


def _copy_and_fill(flight: Flight) -> None:
    """Do what needs no message: self sends, and what lies beyond an open end."""
    call, inputs, results = flight.call, flight.inputs, flight.results
    for source, target in call.copies:
        as_memory(results[target]).copy_(as_memory(inputs[source]))
    for target, _ in call.fills:
        as_memory(results[target]).fill_(flight.fill)


def _dense(tensor: Tensor) -> Tensor:
    """Return what can go onto the wire as raw memory."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor
    return as_memory(tensor).contiguous().view(tensor.dtype)
