"""Pooling on a field in shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from ..errors import ArgumentError
from ..halo.arguments import check_shapes
from ..windows import Window
from .extended import Extended, extend, spatial_axes

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..routes import Axis, Shapes

__all__ = ["HaloPool2d"]


class HaloPool2d(nn.Module):
    """``torch.nn.MaxPool2d`` or ``AvgPool2d`` of a field in shards.

    Each rank computes the outputs whose window, moved on by the padding, begins in its shard: all
    ranks' outputs one after another are those of the torch layer on the whole field.

    Args:
        pool: The torch layer: its kernel, stride, padding, dilation, ``ceil_mode`` and averages
            are taken as they are. Without ``return_indices``.
        exchange: Over the mesh on which the field lies.
        dims: Which of the dims (N, C, H, W) lies along which axis, as ``{2: "y", 3: "x"}``;
            negative ones count from the last. Dims that are not there are whole on each rank.
        shapes: As in :meth:`~collectives.Exchange.halo_exchange`.

    Raises:
        ArgumentError: ``dims`` names what is no spatial dim; or a layer of another kind.

    Example:
        >>> def program(adapter):
        ...     exchange = Exchange(Ring, adapter)
        ...     pool = HaloPool2d(torch.nn.MaxPool2d(3, 2), exchange=exchange, dims={-1: "ring"})
        ...     x = torch.arange(4.0).expand(1, 3, 4) + 4 * exchange.rank  # of 0, 1, ..., 7
        ...     return pool(x).flatten().tolist()
        >>> simulate(2, program)
        [[2.0, 4.0], [6.0]]
    """

    def __init__(
        self,
        pool: nn.MaxPool2d | nn.AvgPool2d,
        *,
        exchange: Exchange,
        dims: Mapping[int, Axis],
        shapes: Shapes = "once",
    ) -> None:
        super().__init__()
        if not isinstance(pool, nn.MaxPool2d | nn.AvgPool2d):
            raise ArgumentError(f"HaloPool2d: expected a MaxPool2d or an AvgPool2d, got {pool!r}")
        if isinstance(pool, nn.MaxPool2d) and pool.return_indices:
            raise ArgumentError(
                "HaloPool2d: return_indices=True gives places in the shard with its halo, not in"
                " the field; leave it out"
            )
        self._axes = spatial_axes("HaloPool2d", dims, 2)
        check_shapes("HaloPool2d", shapes)
        self.pool, self.exchange, self.dims, self.shapes = pool, exchange, dict(dims), shapes

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the output.

        Called by: every rank of the exchange. Gradient: to the ranks that the rows came from; tie
        the loss by ``exchange.join(loss)``.

        Args:
            x: This rank's shard, (N, C, H, W) or (C, H, W).

        Raises:
            ArgumentError: On all ranks: the field is too small for the kernel, or a shard for the
                halo that its neighbour needs.
            ExchangeError: The exchange was started and did not succeed.
        """
        pool, windows = self.pool, self._windows()
        largest = isinstance(pool, nn.MaxPool2d)
        extended = extend(
            self.exchange,
            f"HaloPool2d({pool})",
            x,
            windows,
            self._axes,
            mode="lowest" if largest else "zeros",
            shapes=self.shapes,
        )
        kernel, stride = _pair(pool.kernel_size), _pair(pool.stride)
        padding = tuple(
            window.before if axis is None else 0
            for window, axis in zip(windows, self._axes, strict=True)
        )
        if isinstance(pool, nn.MaxPool2d):
            dilation = _pair(pool.dilation)
            y = F.max_pool2d(extended.x, kernel, stride, padding, dilation, pool.ceil_mode)
            return extended.trim(y)
        y = F.avg_pool2d(extended.x, kernel, stride, padding, pool.ceil_mode, divisor_override=1)
        return extended.trim(y) / self._divisor(pool, extended, windows, y)

    def _windows(self) -> tuple[Window, ...]:
        pool = self.pool
        dilation = _pair(pool.dilation) if isinstance(pool, nn.MaxPool2d) else (1, 1)
        sides = zip(
            _pair(pool.kernel_size), _pair(pool.stride), dilation, _pair(pool.padding), strict=True
        )
        return tuple(
            Window(kernel, stride, apart, padding, padding, pool.ceil_mode)
            for kernel, stride, apart, padding in sides
        )

    def _divisor(
        self, pool: nn.AvgPool2d, extended: Extended, windows: tuple[Window, ...], y: Tensor
    ) -> Tensor | int:
        """Return what torch divides each sum by, which depends on its place in the whole field."""
        if pool.divisor_override is not None:
            return pool.divisor_override
        rows, columns = (
            torch.tensor(
                window.counts(mine, size, padding=pool.count_include_pad),
                dtype=y.dtype,
                device=y.device,
            )
            for window, mine, size in zip(windows, extended.outputs, extended.sizes, strict=True)
        )
        return rows[:, None] * columns


def _pair(numbers: int | tuple[int, ...]) -> tuple[int, int]:
    if isinstance(numbers, int):
        return numbers, numbers
    first, second = numbers
    return first, second
