"""Random numbers and autocast of a function that is run once more, as it ran before."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Random", "Surroundings"]

Random = tuple[Tensor, ...]


class Surroundings:
    """What a function runs in: taken where this is made, restored in :meth:`entered`.

    The cache of autocast stays off: a parameter that was cast without a graph would be taken from
    it later, where its gradient is wanted, by whoever uses it in the same region.

    Args:
        device: Where the tensors live, beside the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind) if enabled else None, enabled)
            for kind in _autocast_kinds(device.type)
            for enabled in (torch.is_autocast_enabled(kind),)
        ]

    @contextmanager
    def entered(self, *, grad: bool) -> Iterator[None]:
        """Run a block under the autocast that was found, with this grad mode."""
        with ExitStack() as stack, torch.set_grad_enabled(grad):
            for kind, dtype, enabled in self._autocast:
                if enabled or torch.is_autocast_enabled(kind):
                    region = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
                    stack.enter_context(region)
            yield

    def random(self) -> Random:
        """Return the state of the random generators."""
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(getattr(torch, self._device.type).get_rng_state(self._device))
        return tuple(states)

    def set_random(self, states: Random) -> None:
        """Set the random generators to a state."""
        torch.set_rng_state(states[0])
        if len(states) > 1:
            getattr(torch, self._device.type).set_rng_state(states[1], self._device)

    @contextmanager
    def replayed(self, states: Random) -> Iterator[None]:
        """Run a block from a state of the random generators, and put theirs back after it."""
        before = self.random()
        self.set_random(states)
        try:
            yield
        finally:
            self.set_random(before)


@lru_cache
def _autocast_kinds(device: str) -> tuple[str, ...]:
    return tuple(filter(torch.amp.is_autocast_available, dict.fromkeys(("cpu", device))))
