"""Mesh: ranks on a grid with named axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex, TypeAlias

from ..errors import TopologyError
from .arguments import flag, ordered, positive
from .balanced import balanced_shape
from .base import Shift
from .cartesian import Cartesian
from .device_mesh import DeviceMeshLike, row_major_axes

__all__ = ["Mesh"]

Periodic: TypeAlias = bool | Sequence[bool] | Mapping[str, bool]


class Mesh(Cartesian):
    """Ranks on a grid, numbered in row-major order: the last axis is the fastest.

    Args:
        shape: Extent of each axis, in ranks; at least one axis.
        axes: A name for each axis; by default ``"axis0"``, ``"axis1"``, ...
        periodic: Whether the axes close on themselves: a bool for all, one for each, or a mapping
            from names to bools in which axes that are missing are open.

    Raises:
        TopologyError: An extent that is not a positive int; names that are not unique, non-empty
            strings, one per axis; ``periodic`` that does not fit the axes.

    Example:
        >>> mesh = Mesh((2, 3), axes=("y", "x"), periodic={"y": True})
        >>> mesh
        Mesh((2, 3), axes=('y', 'x'), periodic=(True, False))
        >>> mesh.coords(4), mesh.rank_of((1, 1))
        ((1, 1), 4)
        >>> mesh.shift(5, "x"), mesh.shift(5, "y")
        (Shift(source=4, destination=None), Shift(source=2, destination=2))
        >>> mesh.along("x", 4), mesh.along("y", 4)
        ((3, 4, 5), (1, 4))

    Source: MPI_Cart_create without reordering.
    """

    __slots__ = ()

    def __init__(
        self,
        shape: Sequence[SupportsIndex],
        *,
        axes: Sequence[str] | None = None,
        periodic: Periodic = False,
    ) -> None:
        extents = _extents(shape)
        names = _default_axes(len(extents)) if axes is None else _names(axes, len(extents))
        super().__init__(
            size=math.prod(extents),
            shape=extents,
            axes=names,
            periodic_axes=_periodic_axes(periodic, names),
        )

    @classmethod
    def balanced(
        cls,
        size: SupportsIndex,
        ndim: SupportsIndex,
        *,
        axes: Sequence[str] | None = None,
        periodic: Periodic = False,
    ) -> Mesh:
        """Return the mesh of ``size`` ranks whose ``ndim`` extents are as equal as possible.

        The extents do not increase from axis to axis; a prime number of ranks gives size x 1.

        Raises:
            TopologyError: ``size`` or ``ndim`` is not a positive int, or as for the class.

        Example:
            >>> Mesh.balanced(12, 2), Mesh.balanced(64, 3), Mesh.balanced(7, 2)
            (Mesh((4, 3)), Mesh((4, 4, 4)), Mesh((7, 1)))

        Source: MPI_Dims_create.
        """
        shape = balanced_shape(
            positive("Mesh.balanced", "size", size), positive("Mesh.balanced", "ndim", ndim)
        )
        return cls(shape, axes=axes, periodic=periodic)

    @classmethod
    def from_device_mesh(cls, device_mesh: DeviceMeshLike, *, periodic: Periodic = False) -> Mesh:
        """Return the mesh with the shape and the axis names of torch's ``device_mesh``.

        Only the order of its ranks is read: position k in the flattened device mesh is rank k
        here, whatever the global ranks are (a sub-mesh of 4, 5, 6, 7 has ranks 0 to 3). The group
        that the mesh is used with must consist of exactly those ranks; the group cannot be seen
        from here, so the caller answers for it.

        Args:
            device_mesh: Row-major, as ``init_device_mesh`` makes it. Nothing of it is kept.
            periodic: As for the class; a DeviceMesh does not say.

        Raises:
            TopologyError: Not a DeviceMesh, or one that is not row-major (a transposed one): its
                neighbours would be wrong.
        """
        shape, names = row_major_axes("Mesh.from_device_mesh", device_mesh)
        return cls(shape, axes=names, periodic=periodic)

    def shift(
        self, rank: SupportsIndex, axis: str | int | None, offset: SupportsIndex = 1
    ) -> Shift:
        """Return from whom and to whom a shift by ``offset`` along ``axis`` goes.

        Args:
            rank: Whose neighbours.
            axis: Name or index; ``None`` only where there is one axis.
            offset: Signed, in ranks along the axis.

        Raises:
            TopologyError: No such rank or axis, or an offset that is not an int.

        Source: MPI_Cart_shift.
        """
        return self._shift("shift", rank, axis, offset)

    def __repr__(self) -> str:
        options = ""
        if self.axes != _default_axes(len(self.shape)):
            options += f", axes={self.axes!r}"
        if any(self.periodic_axes):
            options += f", periodic={all(self.periodic_axes) or self.periodic_axes!r}"
        return f"Mesh({self.shape!r}{options})"


def _default_axes(ndim: int) -> tuple[str, ...]:
    return tuple(f"axis{index}" for index in range(ndim))


def _extents(shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    extents = tuple(
        positive("Mesh", f"extent of axis {index}", extent)
        for index, extent in enumerate(ordered("Mesh", "shape", shape))
    )
    if not extents:
        raise TopologyError("Mesh: shape must have at least one axis, got (); one rank is (1,)")
    return extents


def _names(axes: Iterable[object], ndim: int) -> tuple[str, ...]:
    given = ordered("Mesh", "axes", axes)
    # str.__str__ makes a plain str of a subclass (an enum, numpy's), whose repr is its own.
    names = tuple(str.__str__(name) for name in given if isinstance(name, str) and name)
    if len(names) != len(given):
        raise TopologyError(f"Mesh: axes must be non-empty strings, got {given!r}")
    if len(names) != ndim or len(set(names)) != ndim:
        raise TopologyError(f"Mesh: axes must be {ndim} unique names, one per axis, got {names!r}")
    return names


def _periodic_axes(periodic: Periodic, names: tuple[str, ...]) -> tuple[bool, ...]:
    if isinstance(periodic, bool):
        return (periodic,) * len(names)
    if isinstance(periodic, Mapping):
        return _periodic_by_name(periodic, names)
    given = ordered("Mesh", "periodic", periodic)
    if len(given) != len(names):
        raise TopologyError(
            f"Mesh: periodic must be one bool for all or {len(names)}, one per axis, got {given!r}"
        )
    return tuple(
        flag("Mesh", f"periodic on axis {name!r}", value)
        for name, value in zip(names, given, strict=True)
    )


def _periodic_by_name(periodic: Mapping[str, bool], names: tuple[str, ...]) -> tuple[bool, ...]:
    unknown = [name for name in periodic if name not in names]
    if unknown:
        listed = ", ".join(map(repr, names))
        raise TopologyError(f"Mesh: periodic must be by names among {listed}, got {unknown!r}")
    return tuple(
        flag("Mesh", f"periodic on axis {name!r}", periodic.get(name, False)) for name in names
    )
