"""Weighted sums of tensors, and parameters laid end to end so that they travel as one message."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Module

from .checks import PLAIN, is_wrapped, plain
from .errors import ArgumentError

if TYPE_CHECKING:
    from .binding import Binding
    from .context import Placed

__all__ = ["Flats", "check_averaged", "check_params", "weighted_sums"]


def weighted_sums(
    factors: Sequence[float], leaves: Sequence[Tensor], arrived: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    """Return new tensors: the first factor times mine, plus each other one times what arrived.

    Args:
        factors: Of my own, and of each edge, in whose order is summed.
        leaves: My own.
        arrived: Alike, from each edge.
    """
    own, *others = factors
    sums = []
    for index, leaf in enumerate(leaves):
        total = leaf * own
        for factor, theirs in zip(others, arrived, strict=True):
            total = torch.add(total, theirs[index], alpha=factor)
        sums.append(total)
    return sums


def check_averaged(binding: Placed, operation: str, leaves: Iterable[Tensor]) -> None:
    """Refuse tensors that a weight would turn into another dtype."""
    for x in leaves:
        if not (x.is_floating_point() or x.is_complex()):
            raise ArgumentError(
                f"{operation}: only floating-point and complex tensors can be averaged"
                f" {binding.here}, got {x.dtype}; make it x.float(), or leave it out"
            )


def check_params(
    binding: Binding, operation: str, params: Module | Iterable[Tensor], *, written: bool = False
) -> list[Tensor]:
    """Return parameters as a list of tensors that can be averaged.

    Args:
        binding: Of the Exchange.
        operation: For error texts.
        params: As they were given.
        written: Whether they are to be written to.

    Raises:
        ArgumentError: Something else than dense floating-point tensors on the right device.
    """
    if isinstance(params, Module):
        params = params.parameters()
    given: list[object] = [] if isinstance(params, Tensor) else list(params)
    found: list[Tensor] = []
    for x in given:
        if not isinstance(x, Tensor):
            raise ArgumentError(
                f"{operation}: params must hold tensors {binding.here}, got {type(x).__name__};"
                " give model.parameters(), or a list of tensors"
            )
        device = binding.engine.device
        if type(x) not in PLAIN or x.layout is not torch.strided or x.device != device:
            x = plain(binding, operation, x)  # noqa: PLW2901 - the same memory
        if written:
            _check_writable(binding, operation, x)
        found.append(x.detach())
    if not found:
        raise ArgumentError(
            f"{operation}: params must be tensors in a list, at least one {binding.here}; give"
            " model.parameters(), or [tensor]"
        )
    check_averaged(binding, operation, found)
    return found


def _check_writable(binding: Binding, operation: str, x: Tensor) -> None:
    what = ""
    if is_wrapped(x):
        what = "a tensor of a torch.func transform"
    elif any(stride == 0 and n > 1 for stride, n in zip(x.stride(), x.shape, strict=True)):
        what = "an expanded tensor"
    elif x.is_inference() and not torch.is_inference_mode_enabled():
        what = "an inference tensor outside of inference mode"
    if what:
        raise ArgumentError(
            f"{operation}: cannot write into {what} {binding.here}; average a .clone() made outside"
        )


class Flats:
    """Tensors laid end to end: one flat tensor for each dtype.

    Args:
        tensors: Dense; those that are written to by :meth:`put_back`.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._groups: dict[torch.dtype, list[Tensor]] = {}
        for x in tensors:
            self._groups.setdefault(x.dtype, []).append(x)
        self.rows = [torch.cat([x.reshape(-1) for x in group]) for group in self._groups.values()]

    @property
    def contents(self) -> str:
        """What must be alike on all ranks: dtypes and shapes, in order, with numbers for people."""
        shapes = [(str(d), [tuple(x.shape) for x in g]) for d, g in self._groups.items()]
        tensors, elements = sum(map(len, self._groups.values())), sum(r.numel() for r in self.rows)
        digest = zlib.crc32(repr(shapes).encode())
        return f"tensors={tensors}, elements={elements}, shapes={digest:08x}"

    def put_back(self) -> None:
        """Write the rows into the tensors that they came from."""
        for row, group in zip(self.rows, self._groups.values(), strict=True):
            pieces = row.split([x.numel() for x in group])
            views = [piece.view(x.shape) for piece, x in zip(pieces, group, strict=True)]
            torch._foreach_copy_(group, views)
