"""Reading torch's DeviceMesh without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from ..errors import TopologyError

__all__ = ["DeviceMeshLike", "RanksLike", "row_major_axes"]


class RanksLike(Protocol):
    """A tensor of ranks, as far as it is read here."""

    @property
    def shape(self) -> Sequence[int]:
        """Extent of each dimension."""
        ...

    def flatten(self) -> RanksLike:
        """Return the elements in row-major order, in one dimension."""
        ...

    def tolist(self) -> list[int]:
        """Return the elements of one dimension as ints."""
        ...


class DeviceMeshLike(Protocol):
    """A ``torch.distributed.device_mesh.DeviceMesh``, as far as it is read here."""

    @property
    def mesh(self) -> RanksLike:
        """The global ranks, one dimension per axis."""
        ...

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the axes, if they were given."""
        ...


def row_major_axes(
    operation: str, device_mesh: DeviceMeshLike
) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    """Return the shape and the axis names of a mesh whose ranks ascend in row-major order.

    Raises:
        TopologyError: Not a DeviceMesh, or its ranks stand in another order: torch numbers the
            ranks of a group in ascending order, so position k of the mesh would not be rank k of
            its group, and neighbours would be wrong without a word.
    """
    try:
        ranks, shape = device_mesh.mesh.flatten().tolist(), tuple(device_mesh.mesh.shape)
        names = device_mesh.mesh_dim_names
    except AttributeError as error:
        raise TopologyError(
            f"{operation}: device_mesh must be a torch DeviceMesh, got {device_mesh!r} "
            f"of type {type(device_mesh).__name__}; for a shape there is Mesh(shape)"
        ) from error
    for before, after in pairwise(ranks):
        if before >= after:
            raise TopologyError(
                f"{operation}: ranks must ascend in row-major order, got {before} before {after} "
                f"in a mesh of shape {shape}; a group numbers its ranks in ascending order, so "
                "neighbours would be wrong; make the device mesh without a transpose, its axes in "
                "the order in which ranks are numbered (as init_device_mesh does)"
            )
    return shape, names
