"""A started call, until its messages have been moved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dtypes import as_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call import Buffer, Call, PackedMessage
    from .chain import Record
    from .engine import Deadline, Engine
    from .transport import Work

__all__ = ["Flight"]


class Flight:
    """What the engine owns of a started call.

    gloo loses a message whose Work is dropped, and writes into a buffer that nobody holds.

    Args:
        engine: That started it.
        call: The tables that it walks.
        inputs: What is being sent.
        results: Where it arrives, in the order of the call's outputs.
        sequence: Number of the exchange on its group.
        deadline: How long it may take.
        record: Its place in the token chain, if it has one.
    """

    __slots__ = (
        "begun", "call", "copied", "deadline", "engine", "inputs", "landed", "packed", "record",
        "results", "sequence", "works",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        call: Call,
        inputs: Sequence[Tensor],
        results: list[Tensor],
        sequence: int,
        deadline: Deadline,
        record: Record | None,
    ) -> None:
        self.engine, self.call, self.inputs, self.results = engine, call, inputs, results
        self.sequence, self.deadline, self.record = sequence, deadline, record
        self.works: Sequence[Work] = ()
        self.packed: list[tuple[PackedMessage, Buffer, bool]] = []
        self.copied: list[tuple[Tensor, Tensor]] = []
        self.landed = False
        self.begun = time.monotonic()

    def wait(self) -> list[Tensor]:
        """Return the outputs once all messages have been moved. Idempotent."""
        if not self.landed:
            self._wait_for_messages()
            self._unpack()
            self.landed = True
            self.inputs, self.works = (), ()
            self.engine.counters.seconds += time.monotonic() - self.begun
        return self.results

    def _wait_for_messages(self) -> None:
        deadline, begun = self.deadline, self.begun
        try:
            for work in self.works:
                work.wait(deadline.remaining(time.monotonic() - begun))
        except BaseException as error:
            failure = self.engine.failure(error, self)
            if failure is error:
                raise
            raise failure from error

    def _unpack(self) -> None:
        for message, buffer, received in self.packed:
            if received:
                torch._foreach_copy_([self.results[i] for i in message.pack.indices], buffer.views)
            message.pack.give(buffer)
        for target, buffer_ in self.copied:
            as_memory(target).copy_(as_memory(buffer_))

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun
