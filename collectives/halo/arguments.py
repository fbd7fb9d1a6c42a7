"""What callers of a halo exchange pass, made plain; refused here before anything is posted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from ..checks import is_wrapped, memory_of, plain
from ..errors import ArgumentError
from ..strips import Margin
from ..topology import Cartesian
from .boundary import MODES, Mode
from .pieces import place_of
from .survey import Request, Rule, Sharded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..binding import Binding
    from ..routes import Axis
    from ..strips import Reach
    from .layout import Layout

__all__ = [
    "Dims",
    "Width",
    "check_out",
    "check_shapes",
    "field_of",
    "make_request",
    "request_of",
    "without_halos",
]

Dims = Mapping[int, "Axis"]
Sides = int | tuple[int, int]
Width = Sides | Mapping[int, Sides]


def field_of(binding: Binding, operation: str, x: object) -> Tensor:
    """Return the shard as plain memory.

    Raises:
        ArgumentError: It is no tensor, or none that can travel.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{operation}: expected a tensor, got {type(x).__name__} {binding.here}; exchange the"
            " halos of one field at a time, or stack the fields"
        )
    return plain(binding, operation, x)


def request_of(
    binding: Binding, operation: str, x: Tensor, dims: Dims, width: Width, mode: Mode
) -> Request:
    """Return the request of a call.

    Raises:
        TopologyError: No such axis.
        ArgumentError: Dims, widths or a mode that there are not.
    """
    if mode not in MODES:
        raise ArgumentError(
            f"{operation}: mode must be 'zeros', 'replicate' or 'reflect', got {mode!r}"
            f" {binding.here}; a periodic axis wraps by itself"
        )
    axes = _axes_by_dim(binding, operation, x, dims)
    widths = _widths_by_dim(binding, operation, x, tuple(axes), width)
    topology = binding.topology
    assert isinstance(topology, Cartesian)
    sharded = [
        Sharded(dim, axis, topology.periodic_axes[axis], Margin(*widths[dim]))
        for dim, axis in axes.items()
    ]
    words = ", ".join(f"{d}: {topology.axes[axes[d]]!r}, width {widths[d]}" for d in axes)
    return Request(f"{operation}({{{words}}}, mode={mode!r})", mode, tuple(sharded))


def make_request(
    binding: Binding, operation: str, mode: Rule, dims: Sequence[tuple[int, Axis, bool, Reach]]
) -> Request:
    """Return a request for (dim, axis, wraps, reach) in ascending order of the dims.

    Raises:
        TopologyError: No such axis.
        ArgumentError: The field wraps along an axis that does not.
    """
    sharded, topology = [], binding.topology
    for dim, axis, wraps, reach in dims:
        index = topology.axis_index(axis, operation)
        assert isinstance(topology, Cartesian)
        if wraps and not topology.periodic_axes[index]:
            raise ArgumentError(
                f"{operation}: padding_mode='circular' needs an axis that closes on itself, got the"
                f" open axis {topology.axes[index]!r} {binding.here}; make the topology periodic"
                " along it"
            )
        sharded.append(Sharded(dim, index, wraps, reach))
    words = ", ".join(f"{dim} along {axis!r}" for dim, axis, _, _ in dims)
    return Request(f"{operation} with dim {words}", mode, tuple(sharded))


def check_shapes(operation: str, shapes: str) -> None:
    """Refuse a ``shapes`` that there is not."""
    if shapes not in ("same", "discover", "once"):
        raise ArgumentError(
            f"{operation}: shapes must be 'same', 'discover' or 'once', got {shapes!r}"
        )


def without_halos(
    binding: Binding, operation: str, request: Request, shape: Sequence[int]
) -> list[int]:
    """Return the shape of a shard, given that of the padded one.

    Raises:
        ArgumentError: It is too small to have such halos.
    """
    inner = list(shape)
    for one in request.dims:
        assert isinstance(one.reach, Margin)
        inner[one.dim] -= one.reach.before + one.reach.after
        if inner[one.dim] < 0:
            raise ArgumentError(
                f"{operation}: expected a padded shard of at least"
                f" {one.reach.before + one.reach.after} rows along dim {one.dim}, got"
                f" {shape[one.dim]} {binding.here}; give what halo_exchange returns, or its"
                " gradient"
            )
    return inner


def check_out(binding: Binding, layout: Layout, x: Tensor, out: Tensor) -> None:
    """Refuse memory that the padded shard cannot be written to.

    Raises:
        ArgumentError: Of another kind, or it shares memory with the shard in another way than
            with the shard as its interior.
    """
    op, shape = layout.request.op, layout.padded(x.shape)
    if is_wrapped(x) or is_wrapped(out):
        raise ArgumentError(
            f"{op}: out= cannot be used inside torch.func transforms {binding.here}; leave it out"
        )
    wanted = (shape, x.dtype, x.device)
    if (tuple(out.shape), out.dtype, out.device) != wanted or out.requires_grad:
        raise ArgumentError(
            f"{op}: out= must be a plain buffer of shape {shape}, {x.dtype} on {x.device}, got"
            f" {tuple(out.shape)}, {out.dtype} on {out.device} with requires_grad="
            f"{out.requires_grad} {binding.here}"
        )
    if any(n > 1 and stride == 0 for n, stride in zip(out.shape, out.stride(), strict=True)):
        raise ArgumentError(
            f"{op}: out= is expanded: many elements are one memory {binding.here}; use .clone()"
        )
    if memory_of(out) == memory_of(x) and x.numel():
        interior = place_of(layout.interior, out)
        if interior.data_ptr() != x.data_ptr() or _strides(interior) != _strides(x):
            raise ArgumentError(
                f"{op}: out= shares memory with the shard, which is not its interior"
                f" {binding.here}: expected the shard at offset {interior.storage_offset()} with"
                f" strides {interior.stride()}, got {x.storage_offset()} and {x.stride()}; narrow"
                " the buffer by the widths, or give another buffer"
            )


def _strides(x: Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def _axes_by_dim(binding: Binding, operation: str, x: Tensor, dims: Dims) -> dict[int, int]:
    given_as: object = dims
    if not isinstance(given_as, Mapping) or not dims:
        raise ArgumentError(
            f"{operation}: dims must say which dim lies along which axis, such as {{0: 'ring'}},"
            f" got {dims!r} {binding.here}"
        )
    axes: dict[int, int] = {}
    for given, axis in dims.items():
        dim = _dim(binding, operation, x, given)
        index = binding.topology.axis_index(axis, operation)
        if dim in axes or index in axes.values():
            raise ArgumentError(
                f"{operation}: each dim may lie along one axis, and each axis along one dim, got"
                f" {dims!r} for {x.dim()} dims {binding.here}"
            )
        axes[dim] = index
    # In an order of their own: ranks may have filled their mappings in different ones.
    return dict(sorted(axes.items()))


def _dim(binding: Binding, operation: str, x: Tensor, dim: object) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool) or not -x.dim() <= dim < x.dim():
        raise ArgumentError(
            f"{operation}: a dim must be in {-x.dim()}..{x.dim() - 1}, got {dim!r} {binding.here}"
        )
    return dim % x.dim()


def _widths_by_dim(
    binding: Binding, operation: str, x: Tensor, dims: tuple[int, ...], width: Width
) -> dict[int, tuple[int, int]]:
    if not isinstance(width, Mapping):
        return {dim: _sides(binding, operation, width) for dim in dims}
    widths = {
        _dim(binding, operation, x, dim): _sides(binding, operation, sides)
        for dim, sides in width.items()
    }
    if set(widths) != set(dims) or len(widths) != len(width):
        raise ArgumentError(
            f"{operation}: width must have the same dims as dims, got {sorted(width)} for"
            f" {list(dims)} {binding.here}; 0 where no halo is wanted"
        )
    return widths


def _sides(binding: Binding, operation: str, sides: object) -> tuple[int, int]:
    pair = sides if isinstance(sides, tuple) else (sides, sides)
    if len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair):
        return pair
    raise ArgumentError(
        f"{operation}: a width must be a number of rows or (before, after), got {sides!r}"
        f" {binding.here}"
    )
