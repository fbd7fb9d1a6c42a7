"""A shard with all rows that this rank's outputs look at, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from ..compiled.eager import in_eager_mode, not_in_graphs
from ..errors import ArgumentError
from ..halo.arguments import field_of, make_request
from ..halo.crossing import Carrier, Crossing
from ..halo.layout import find_layout
from ..strips import offsets
from ..tracing import tracing

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..halo.layout import Layout
    from ..halo.survey import Rule
    from ..routes import Axis, Shapes
    from ..windows import Window

__all__ = ["Extended", "extend", "spatial_axes"]


@dataclass(frozen=True, slots=True)
class Extended:
    """What a layer is computed on.

    Args:
        x: The shard with its halos.
        sizes: Of the whole field, for each spatial dim.
        outputs: Which of the whole output's rows this rank computes, likewise.
    """

    x: Tensor
    sizes: tuple[int, ...]
    outputs: tuple[range, ...]

    def trim(self, y: Tensor) -> Tensor:
        """Return a layer's output without the rows of a rank that has none."""
        for i, mine in enumerate(self.outputs):
            if not mine:
                y = y.narrow(i - len(self.outputs), 0, 0)
        return y


def spatial_axes(layer: str, dims: Mapping[int, Axis], count: int) -> tuple[Axis, ...]:
    """Return the axis of each spatial dim, ``None`` for one that is not sharded.

    Args:
        layer: For the error text.
        dims: Dims of a batch (N, C, spatial ones), or negative ones, with their axes.
        count: Of spatial dims.

    Raises:
        ArgumentError: A dim that is not spatial, or twice the same.
    """
    axes: list[Axis] = [None] * count
    for dim, axis in dims.items():
        i = dim + count if dim < 0 else dim - 2
        if not 0 <= i < count or axes[i] is not None or axis is None:
            raise ArgumentError(
                f"{layer}: dims must say which spatial dim lies along which axis, by dims in"
                f" 2..{count + 1} or {-count}..-1 and names or numbers of axes, got {dims!r}"
            )
        axes[i] = axis
    return tuple(axes)


def extend(
    exchange: Exchange,
    layer: str,
    x: Tensor,
    windows: Sequence[Window],
    axes: Sequence[Axis],
    *,
    mode: Rule = "zeros",
    wraps: bool = False,
    shapes: Shapes = "once",
) -> Extended:
    """Give each rank the rows that its outputs look at; every rank calls it.

    Args:
        exchange: Over the ranks of the field.
        layer: For error texts, and part of what ranks must agree on.
        x: The shard; its last dims are the spatial ones.
        windows: For each spatial dim.
        axes: For each spatial dim, ``None`` where it is not sharded: then it stays as it is.
        mode: What lies beyond the ends of the field.
        wraps: Whether the field closes on itself instead, along the sharded dims.
        shapes: As in ``halo_exchange``.

    Raises:
        ArgumentError: The field is too small for a window, or a shard for a halo: on all ranks.
    """
    if tracing():
        more = {"mode": mode, "wraps": wraps, "shapes": shapes}
        reason = not_in_graphs(layer)
        return in_eager_mode(reason, extend, exchange, layer, x, windows, axes, **more)
    binding = exchange._bound()
    x = field_of(binding, layer, x)
    first = x.dim() - len(windows)
    if first < 1:
        raise ArgumentError(
            f"{layer}: expected a shard with channels and {len(windows)} spatial dims, got shape"
            f" {tuple(x.shape)} {binding.here}"
        )
    dims = [
        (first + i, axis, wraps, window)
        for i, (axis, window) in enumerate(zip(axes, windows, strict=True))
        if axis is not None
    ]
    request = make_request(binding, layer, mode, dims)
    layout = find_layout(binding, request, x.shape, shapes, None)
    sizes, outputs = _outputs(layout, x.shape, windows)
    for i, (window, size) in enumerate(zip(windows, sizes, strict=True)):
        if not window.outputs(size):
            raise ArgumentError(
                f"{layer}: a window of {window.extent} rows does not fit into a field of {size}"
                f" with padding {(window.before, window.after)} along spatial dim {i}"
                f" {binding.here}; use a smaller kernel or more padding"
            )
    if any(leg.route or leg.strip.before or leg.strip.after for leg in layout.legs):
        x = Crossing(Carrier(binding, None), layout, x).finish()
    x = _cropped(x, layout)
    for i, (window, mine) in enumerate(zip(windows, outputs, strict=True)):
        if not mine:
            x = _at_least(x, first + i, window.extent)
    return Extended(x, sizes, outputs)


def _outputs(
    layout: Layout, shape: Sequence[int], windows: Sequence[Window]
) -> tuple[tuple[int, ...], tuple[range, ...]]:
    """Return the sizes of the whole field and this rank's outputs, for each spatial dim."""
    first = len(shape) - len(windows)
    sizes = list(shape[first:])
    outputs = [range(window.outputs(size)) for window, size in zip(windows, sizes, strict=True)]
    for leg, position in zip(layout.legs, layout.position, strict=True):
        i = leg.dim - first
        sizes[i] = sum(leg.sizes)
        outputs[i] = windows[i].owned(leg.sizes)[position]
    return tuple(sizes), tuple(outputs)


def _cropped(x: Tensor, layout: Layout) -> Tensor:
    """Return the rows that are needed: a window may begin after the first rows of a shard."""
    for one, leg, position in zip(layout.request.dims, layout.legs, layout.position, strict=True):
        rows = one.reach.needs(leg.sizes)[position]
        first = offsets(leg.sizes)[position] - leg.strip.before
        x = x.narrow(leg.dim, rows.start - first, rows.stop - rows.start)
    return x


def _at_least(x: Tensor, dim: int, rows: int) -> Tensor:
    """Return ``x`` with zeros behind it up to so many rows, for a rank without outputs."""
    missing = rows - x.shape[dim]
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing)) if missing > 0 else x
