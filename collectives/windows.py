"""Which outputs of a convolution or pooling a rank computes, and from which rows: no torch.

Output ``j`` of the whole field looks at ``kernel`` rows from ``j * stride - before`` on,
``dilation`` apart. It belongs to the rank whose shard holds row ``j * stride`` (the last rank's
where there is none: in the padding behind the field). So a layer that keeps the size of the field
keeps that of every shard, and all ranks' outputs one after another are those of the unsharded
layer::

    >>> window = Window(kernel=3, stride=2, before=1, after=1)
    >>> window.owned((3, 4))  # of 4 outputs: rank 0 computes 0 and 1, rank 1 computes 2 and 3
    (range(0, 2), range(2, 4))
    >>> window.needs((3, 4))
    (Rows(start=-1, stop=4), Rows(start=3, stop=8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .strips import Rows, offsets

__all__ = ["Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """A kernel on its way along one dim.

    Args:
        kernel: Rows that it looks at.
        stride: From one output to the next.
        dilation: From one of its rows to the next.
        before: Padding in front of the field.
        after: Padding behind it.
        ceil: Whether a last window may reach beyond the padding, as in torch's ``ceil_mode``.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    ceil: bool = False

    @property
    def extent(self) -> int:
        """Rows from its first to its last."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, size: int) -> int:
        """Return how many outputs a field of that size has, 0 if it is too small for one."""
        room = size + self.before + self.after - self.extent
        if room < 0:
            return 0
        count = (room + (self.stride - 1 if self.ceil else 0)) // self.stride + 1
        # A window that begins behind the field and its padding would see nothing.
        begins_behind = (count - 1) * self.stride >= size + self.before
        return count - 1 if self.ceil and begins_behind else count

    def owned(self, sizes: Sequence[int]) -> tuple[range, ...]:
        """Return the outputs of each rank, given the sizes of all shards."""
        total = self.outputs(sum(sizes))
        starts = [min(-(-offset // self.stride), total) for offset in offsets(sizes)]
        return tuple(map(range, starts, [*starts[1:], total]))

    def needs(self, sizes: Sequence[int]) -> tuple[Rows, ...]:
        """Return the rows that each rank's outputs look at; its own shard where it has none."""
        shards = zip(offsets(sizes), sizes, strict=True)
        return tuple(
            Rows(
                mine[0] * self.stride - self.before,
                mine[-1] * self.stride - self.before + self.extent,
            )
            if mine
            else Rows(offset, offset + size)
            for mine, (offset, size) in zip(self.owned(sizes), shards, strict=True)
        )

    def counts(self, outputs: range, size: int, *, padding: bool) -> tuple[int, ...]:
        """Return over how many rows each output's average is.

        Args:
            outputs: Numbers of the outputs.
            size: Of the whole field.
            padding: Whether rows of the padding count; rows behind it never do.
        """
        low, high = (-self.before, size + self.after) if padding else (0, size)
        starts = [j * self.stride - self.before for j in outputs]
        ends = [min(start + self.extent, size + self.after) for start in starts]
        return tuple(
            min(end, high) - max(start, low) for start, end in zip(starts, ends, strict=True)
        )
