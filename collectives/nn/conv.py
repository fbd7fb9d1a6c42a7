"""Convolutions on a field in shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from ..halo.arguments import check_shapes
from ..windows import Window
from .extended import extend, spatial_axes

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..routes import Axis, Shapes

__all__ = ["HaloConv", "HaloConv1d", "HaloConv2d", "HaloConv3d"]

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Numbers = int | tuple[int, ...]


class HaloConv(nn.Module):
    """A convolution of a field in shards: what :class:`HaloConv1d` to 3d have in common.

    Every rank holds the whole weight and its own shard of the field. It computes the outputs whose
    window, moved on by the padding, begins in its shard: all ranks' outputs one after another are
    torch's. A layer that keeps the size of the field keeps that of each shard. Shards may have
    different sizes.

    The gradients of weight and bias are this rank's part: their **sum over ranks** is the gradient
    of the unsharded layer, for a loss that is the sum of all ranks' losses. DDP divides that sum by
    the number of ranks: with equal shards, the means over the shards so have the gradient of the
    mean over the field.

    Args:
        in_channels: As in torch's layer, as all that is not listed here; state dicts are the same.
        padding_mode: What lies beyond the field, on a periodic axis too. "circular": the field
            closes on itself, for which the axes must be periodic.
        exchange: Over the mesh on which the field lies.
        dims: Which of the dims (N, C, spatial ones) lies along which axis, as ``{2: "y", 3: "x"}``;
            negative ones count from the last. Spatial dims that are not there are whole on each
            rank.
        shapes: As in :meth:`~collectives.Exchange.halo_exchange`.

    Raises:
        ArgumentError: ``dims`` names what is no spatial dim.

    Example:
        >>> def program(adapter):
        ...     exchange = Exchange(Ring, adapter)
        ...     spread = {"exchange": exchange, "dims": {2: "ring"}}
        ...     conv = HaloConv1d(1, 1, 3, padding=1, bias=False, **spread)
        ...     torch.nn.init.ones_(conv.weight)
        ...     return conv(torch.full((1, 1, 2), exchange.rank + 1.0)).flatten().tolist()
        >>> simulate(2, program)  # of the field 1, 1, 2, 2
        [[2.0, 4.0], [5.0, 4.0]]
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: PaddingMode
    weight: Tensor
    bias: Tensor | None
    _convolve: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: str | Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        exchange: Exchange,
        dims: Mapping[int, Axis],
        shapes: Shapes = "once",
    ) -> None:
        # Of torch's class, which stands behind this one in every subclass.
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        name = type(self).__name__
        self._axes = spatial_axes(name, dims, len(self.kernel_size))
        check_shapes(name, shapes)
        self.exchange, self.dims, self.shapes = exchange, dict(dims), shapes

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the output.

        Called by: every rank of the exchange. Gradient: to the ranks that the rows came from; tie
        the loss by ``exchange.join(loss)``.

        Args:
            x: This rank's shard, (N, C, spatial dims) or without N.

        Raises:
            ArgumentError: On all ranks: the field is too small for the kernel, or a shard for the
                halo that its neighbour needs.
            ExchangeError: The exchange was started and did not succeed.
        """
        windows, mode = self._windows(), self.padding_mode
        extended = extend(
            self.exchange,
            self._label(),
            x,
            windows,
            self._axes,
            mode="zeros" if mode == "circular" else mode,
            wraps=mode == "circular",
            shapes=self.shapes,
        )
        local, padding = self._padded_where_whole(extended.x, windows)
        y = self._convolve(
            local, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )
        return extended.trim(y)

    def _windows(self) -> tuple[Window, ...]:
        windows = []
        sides = zip(self.kernel_size, self.stride, self.dilation, strict=True)
        for i, (kernel, stride, dilation) in enumerate(sides):
            if isinstance(self.padding, str):
                # As torch: where "same" pads an odd number of rows, one more is behind.
                total = dilation * (kernel - 1) if self.padding == "same" else 0
                before, after = total // 2, total - total // 2
            else:
                before = after = self.padding[i]
            windows.append(Window(kernel, stride, dilation, before, after))
        return tuple(windows)

    def _padded_where_whole(
        self, x: Tensor, windows: tuple[Window, ...]
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Pad the dims that are not sharded, or leave it to the convolution if that can do it."""
        whole = [
            (window.before, window.after) if axis is None else (0, 0)
            for window, axis in zip(windows, self._axes, strict=True)
        ]
        mode = self.padding_mode
        if mode == "zeros" and all(before == after for before, after in whole):
            return x, tuple(before for before, _ in whole)
        if any(before or after for before, after in whole):
            pads = [rows for sides in reversed(whole) for rows in sides]
            x = F.pad(x, pads, mode="constant" if mode == "zeros" else mode)
        return x, (0,) * len(whole)

    def _label(self) -> str:
        return (
            f"{type(self).__name__}(kernel_size={self.kernel_size}, stride={self.stride},"
            f" padding={self.padding!r}, dilation={self.dilation},"
            f" padding_mode={self.padding_mode!r})"
        )

    def extra_repr(self) -> str:
        """Return the arguments of torch's layer, and the sharded dims."""
        return f"{super().extra_repr()}, dims={self.dims}"


class HaloConv1d(HaloConv, nn.Conv1d):
    """``torch.nn.Conv1d`` of a field in shards: see :class:`HaloConv`."""

    _convolve = staticmethod(F.conv1d)


class HaloConv2d(HaloConv, nn.Conv2d):
    """``torch.nn.Conv2d`` of a field in shards: see :class:`HaloConv`."""

    _convolve = staticmethod(F.conv2d)


class HaloConv3d(HaloConv, nn.Conv3d):
    """``torch.nn.Conv3d`` of a field in shards: see :class:`HaloConv`."""

    _convolve = staticmethod(F.conv3d)
