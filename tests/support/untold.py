"""A transport as NCCL: no tags, and nobody tells it what its messages belong to."""

from __future__ import annotations

import dataclasses

from collectives import Adapter, Context
from collectives.transport.simulator import SimulatedTransport

__all__ = ["Untold"]


class _UntoldTransport(SimulatedTransport):
    announce = None  # type: ignore[assignment]


class Untold:
    """The adapter of one simulated rank whose transport compares no signatures."""

    def __init__(self, adapter: Adapter) -> None:
        told = adapter.context()
        assert isinstance(told.transport, SimulatedTransport)
        transport = _UntoldTransport(told.transport._world, told.rank)
        self._context = dataclasses.replace(told, transport=transport)

    def context(self) -> Context:
        return self._context
