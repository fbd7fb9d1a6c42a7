"""Runs one call on one transport: post everything, wait for everything, unpack.

Receives are posted before sends: gloo's send is a rendezvous, and a receive that is already there
saves a round of its event loop. Self sends are copies, open ends are filled. Every wait has the
deadline of its exchange. The first failure breaks the group for good: a gloo pair that has timed
out is closed, and whatever came next would fail with a text that hides the cause.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from .call import SEQUENCE_BITS
from .chain import caller
from .dtypes import as_memory
from .errors import CollectivesError, ExchangeError, ExchangeTimeout, PeerLost
from .flight import NOTHING, Flight
from .state import Counters
from .trace import Trace
from .transport import Post
from .transport.group import failure_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call import Call
    from .state import GroupState
    from .transport import Transport

__all__ = ["Engine"]

W = TypeVar("W")

_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class Engine:
    """Runs calls.

    Args:
        transport: Moves the bytes.
        device: Where tensors live.
        state: Of the group.
    """

    def __init__(self, transport: Transport, device: torch.device, state: GroupState) -> None:
        self.transport, self.device, self.state = transport, device, state
        self.rank, self.size = transport.rank, transport.size
        self.counters = Counters()
        self._send, self._recv, self._batch = transport.send, transport.recv, transport.batch
        self._announce = transport.announce

    def start(self, flight: Flight, inputs: Sequence[Tensor]) -> Flight:
        """Post all messages of a flight.

        Args:
            flight: Made, and not started.
            inputs: One tensor per input of its call.
        """
        call = flight.call
        if flight.outs is None:
            results = [
                NOTHING if i in call.unpacked_later else torch.empty(s, dtype=d, device=self.device)
                for i, (s, d) in enumerate(call.outputs)
            ]
        else:
            results = list(flight.outs)
        begun = time.monotonic()
        flight.inputs, flight.results, flight.begun = inputs, results, begun
        trace = flight.trace = Trace(call, flight.sequence, self.state.step, begun)
        self.state.history.append(trace)
        if self._announce is not None:
            where = flight.record.where if flight.record is not None else caller()
            self._announce(call.signature(flight.sequence, self.state.step, where))
        if call.stays:
            _copy_and_fill(flight)
        try:
            if self._batch is None:
                flight.works = self._post(flight, self._send, self._recv)
            else:
                flight.works = self._batch(self._in_batch(flight))
        except BaseException as error:
            failure = self.failure(error, flight)
            if failure is error:
                raise
            raise failure from error
        self._count(call)
        return flight

    def _in_batch(self, flight: Flight) -> list[Post]:
        sends: list[Post] = []
        receives: list[Post] = []
        self._post(
            flight,
            lambda tensors, peer, tag: sends.append(Post("send", tensors[0], peer, tag)),
            lambda tensors, peer, tag: receives.append(Post("recv", tensors[0], peer, tag)),
        )
        return sends + receives

    def _post(
        self,
        flight: Flight,
        send: Callable[[list[Tensor], int, int], W],
        recv: Callable[[list[Tensor], int, int], W],
    ) -> list[W]:
        """Post the messages of a flight one by one, and return what each post gave."""
        call, inputs, results = flight.call, flight.inputs, flight.results
        mix = self.state.step_tag ^ ((flight.sequence & _SEQUENCE_MASK) << 1)
        works = []
        for position, peer, tag, leaf in call.recv_singles:
            target = results[position]
            if not target.is_contiguous():
                target = flight.detour(target, leaf)
            works.append(recv([target], peer, tag ^ mix))
        for pack, peer, tag in call.recv_packs:
            packed = flight.take(pack, received=True)
            works.append(recv([packed.flat], peer, tag ^ mix))
        for position, peer, tag, _ in call.send_singles:
            tensor = inputs[position]
            if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
                tensor = _dense(tensor)
            works.append(send([tensor], peer, tag ^ mix))
        for pack, peer, tag in call.send_packs:
            packed = flight.take(pack, received=False)
            packed.fill([inputs[i] for i in pack.indices])
            works.append(send([packed.flat], peer, tag ^ mix))
        return works

    def _count(self, call: Call) -> None:
        counters = self.counters
        counters.exchanges += 1
        counters.messages_sent += call.messages_sent
        counters.bytes_sent += call.bytes_sent
        counters.bytes_received += call.bytes_received

    def failure(self, error: BaseException, flight: Flight) -> BaseException:
        """Return what to raise for an error of the transport, and break the group's state."""
        signature = flight.call.signature(
            flight.sequence,
            self.state.step,
            flight.record.where if flight.record is not None else caller(),
        )
        hint = self._skipped(flight)
        here = f"rank {self.rank} of {self.size}"
        self.state.broken = self.state.broken or f"{signature} failed: {_first_line(error)}"
        self.state.wreck = flight  # its buffers may still be written to
        if isinstance(error, CollectivesError):
            return type(error)(f"{error} ({here}){hint}") if hint else error
        if not isinstance(error, Exception):
            return error  # Ctrl-C and its like stay what they are
        kind = failure_kind(error)
        elapsed = f"after {flight.elapsed:.2f} s of {flight.deadline.seconds:g} s"
        peers = " or ".join(map(str, flight.call.peers))
        if kind == "timeout":
            return ExchangeTimeout(
                f"{signature}: no answer from rank {peers} {elapsed} ({here}){hint}."
                f" {self._advice(flight)} A slow rank needs a longer timeout="
            )
        if kind == "lost":
            return PeerLost(
                f"{signature}: the connection to rank {peers} was closed {elapsed} ({here}){hint}."
                " Its process ended or gave up: its own output says why"
            )
        return ExchangeError(f"{signature} failed {elapsed} ({here}){hint}: {_first_line(error)}")

    def _advice(self, flight: Flight) -> str:
        same = (
            "Do all ranks call the same exchanges in the same order, with the same shapes, dtypes,"
            " grad mode and mark_step numbers?"
        )
        if flight.call.phase == 0:
            return same
        return f"Does the loss of that rank depend on it (loss = exchange.join(loss))? {same}"

    def _skipped(self, flight: Flight) -> str:
        """Name the exchanges that this backward left out, if it did: others wait in them."""
        if flight.record is None or flight.call.phase == 0:
            return ""
        skipped = self.state.chain.skipped_after(flight.record)
        if not skipped:
            return ""
        return (
            f"; this rank never ran the backward of {skipped[0]}: its loss does not depend on"
            " it, so tie all exchanges to the loss: loss = exchange.join(loss)"
        )


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


def _first_line(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text.partition(". This is typically caused by")[0]  # gloo's own advice
