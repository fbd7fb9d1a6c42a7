"""A field in uneven shards on a mesh, and what torch alone makes of the whole field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from collectives import Mesh

__all__ = ["FIELDS", "Field", "padded"]


@dataclass(frozen=True)
class Field:
    """Shards of a tensor whose dims 1, 2, ... lie along the axes of a mesh.

    Args:
        mesh: Of the ranks.
        sizes: For each axis, the sizes of the shards along it.
    """

    mesh: Mesh
    sizes: tuple[tuple[int, ...], ...]

    @property
    def dims(self) -> dict[int, str | int | None]:
        return dict(enumerate(self.mesh.axes, start=1))

    def whole(self, channels: int = 2, seed: int = 0) -> Tensor:
        shape = (channels, *map(sum, self.sizes))
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    def shard(self, whole: Tensor, rank: int, extra: Sequence[tuple[int, int]] = ()) -> Tensor:
        """The shard of a rank; of a field padded by ``extra`` rows, the shard with its halos."""
        extra = extra or [(0, 0)] * len(self.sizes)
        coords = self.mesh.coords(rank)
        for dim, (at, sizes, rows) in enumerate(zip(coords, self.sizes, extra, strict=True), 1):
            whole = whole.narrow(dim, sum(sizes[:at]), sizes[at] + sum(rows))
        return whole

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """The whole of all ranks' parts; the last dims are those of the axes."""
        parts = list(parts)
        for i in reversed(range(len(self.mesh.shape))):
            extent = self.mesh.shape[i]
            dim = i - len(self.mesh.shape)
            parts = [
                torch.cat(list(parts[first : first + extent]), dim)
                for first in range(0, len(parts), extent)
            ]
        (whole,) = parts
        return whole


FIELDS = [
    Field(Mesh((1,), periodic=True), ((4,),)),
    Field(Mesh((5,)), ((4, 3, 5, 3, 4),)),
    Field(Mesh((1, 2), axes=("y", "x")), ((4,), (3, 5))),
    Field(Mesh((2, 2), axes=("y", "x"), periodic=True), ((3, 4), (5, 3))),
    Field(Mesh((3, 2), axes=("y", "x"), periodic=(True, False)), ((4, 3, 3), (3, 4))),
    Field(
        Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, True)),
        ((3,), (4,), (3, 4)),
    ),
]


def padded(field: Field, whole: Tensor, widths: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """The whole field padded dim after dim by torch."""
    for dim, (rows, periodic) in enumerate(zip(widths, field.mesh.periodic_axes, strict=True), 1):
        rule = "circular" if periodic else {"zeros": "constant"}.get(mode, mode)
        lines = whole.movedim(dim, -1)
        flat = F.pad(lines.reshape(1, -1, lines.shape[-1]), rows, mode=rule)
        whole = flat.reshape(*lines.shape[:-1], -1).movedim(-1, dim)
    return whole
