"""A real exchange between the ranks of a job: are the values right, and how long does it take?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..context import Context
from ..devices import set_current_device
from ..errors import CollectivesError
from ..exchange import Exchange
from ..launcher import Launch
from ..runtime import bind_group
from ..topology import Ring
from ..transport.control import meet_at_end
from ..transport.start import start_group
from .rank import Trial

__all__ = ["try_exchange"]

_SMALL, _LARGE = 4, 2**20  # bytes
_ROUNDS = {_SMALL: 50, _LARGE: 10}
_WARM = 3
_LONGEST = 20.0  # seconds for one exchange


class _DefaultGroup:
    """The adapter of this trial."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def context(self) -> Context:
        return bind_group(None, self._device, source="doctor")


def try_exchange(
    launch: Launch, device: torch.device, timeout: float, tell: Callable[[str], None]
) -> Trial:
    """Join the job as ``RawDDPAdapter`` does, exchange round a ring, and check what arrives.

    Called by every rank of the job. It never raises; the process is to end soon after, since its
    process group stays.

    Args:
        launch: Which process this is.
        device: Of the tensors.
        timeout: For joining, and as the bound of what comes after, in seconds.
        tell: Is told what is waited for.
    """
    begun = time.monotonic()
    try:
        tell("waiting for all ranks to join")
        set_current_device(device)
        start_group(launch, backend=None, device=device, timeout=timeout)
        joined = time.monotonic() - begun
        tell("exchanging")
        exchange = Exchange(
            Ring, _DefaultGroup(device), name="doctor", timeout=min(timeout, _LONGEST)
        )
        _check_values(exchange)
        small, large = (_measure(exchange, size) for size in (_SMALL, _LARGE))
        group = exchange._bound().context.group
        if group is not None:
            meet_at_end(group, timeout)  # who left at once would close connections in use
    except (CollectivesError, RuntimeError, ValueError) as error:
        return Trial(error=f"{type(error).__name__}: {error}")
    return Trial("", joined, small, large)


def _check_values(exchange: Exchange) -> None:
    """Exchange forward and backward; raise where something else arrives than was sent."""
    rank, size = exchange.rank, exchange.size
    mine = torch.arange(5.0, device=exchange.device) + 10 * rank
    mine.requires_grad_()
    received = exchange.exchange(to_left=mine, to_right=-mine)
    for side, got, sign, peer in (
        ("left", received.from_left, -1, (rank - 1) % size),
        ("right", received.from_right, 1, (rank + 1) % size),
    ):
        _compare(f"from the {side}", got, sign * (torch.arange(5.0) + 10 * peer))
    exchange.join((received.from_left + 2 * received.from_right).sum()).backward()
    _compare("in backward", mine.grad, torch.ones(5))


def _compare(what: str, got: torch.Tensor | None, expected: torch.Tensor) -> None:
    if got is None or not torch.equal(got.detach().cpu(), expected):
        raise ValueError(f"what arrived {what} is wrong: expected {expected}, got {got}")


def _measure(exchange: Exchange, size: int) -> float:
    """Return the median of the seconds that a shift takes."""
    block = torch.zeros(size // 4, device=exchange.device)
    seconds = []
    with torch.no_grad():
        for number in range(_WARM + _ROUNDS[size]):
            begun = time.perf_counter()
            exchange.shift(block)[:1].cpu()  # waits for an accelerator
            if number >= _WARM:
                seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)
