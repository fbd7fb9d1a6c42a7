"""What travels: single tensors, and small ones packed into one flat message."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "PACKABLE",
    "PACK_UP_TO",
    "SHARE_FROM",
    "Buffer",
    "Leaf",
    "Pack",
    "PackedMessage",
    "Parcel",
    "SingleMessage",
    "packed_groups",
    "parcels_of",
]

# Up to so many bytes a message of its own costs more than a copy into a common one.
PACK_UP_TO = 64 * 1024
# Two tensors, one on each lane to the same peer, share a message from so many bytes on together:
# measured over gloo, where two messages of 4 KiB take less time than one and its copies.
SHARE_FROM = 48 * 1024

# Messages that take milliseconds are waited for in a way that can be given up.
LONG = 8 * 1024 * 1024

# exotic dtypes (float8, bits, quantised) go singly: not every copy kernel knows them
PACKABLE = frozenset(
    {
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
        torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
        torch.bool,
    }
)  # fmt: skip


class Leaf(NamedTuple):
    """What must be known of a tensor to receive it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"

    @property
    def differentiable(self) -> bool:
        """Whether gradients flow through such a tensor."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return math.prod(self.shape) * self.dtype.itemsize


class Parcel(NamedTuple):
    """One leaf on one lane.

    Args:
        key: Of the lane.
        part: Number of the leaf in its tree.
        position: Among the inputs or outputs of the call.
        leaf: What it is.
        tree: How the tree is built that it belongs to, in words.
    """

    key: int
    part: int
    position: int
    leaf: Leaf
    tree: str


def parcels_of(key: int, leaves: tuple[Leaf, ...], first: int, tree: str) -> list[Parcel]:
    """Return the leaves of one tree on its lane, numbered from ``first``."""
    return [Parcel(key, i, first + i, leaf, tree) for i, leaf in enumerate(leaves)]


def packed_groups(parcels: list[Parcel]) -> list[list[Parcel]]:
    """Return those that travel together: small ones of one dtype."""
    groups: dict[torch.dtype, list[Parcel]] = {}
    for parcel in parcels:
        if parcel.leaf.nbytes <= PACK_UP_TO and parcel.leaf.dtype in PACKABLE:
            groups.setdefault(parcel.leaf.dtype, []).append(parcel)
    return [group for group in groups.values() if _worth_packing(group)]


def _worth_packing(group: list[Parcel]) -> bool:
    """Whether one message and two copies take less time than a message each.

    Where both lanes lead to one peer (a ring of two) they may share a message; two tensors alone
    are worth it from a certain size on.
    """
    lanes = len({parcel.key for parcel in group})
    if len(group) > lanes:
        return True
    return len(group) > 1 and sum(parcel.leaf.nbytes for parcel in group) >= SHARE_FROM


class SingleMessage(NamedTuple):
    """One tensor that travels by itself; ``position`` in the flat list of inputs or outputs."""

    position: int
    peer: int
    tag: int
    leaf: Leaf


class Buffer(NamedTuple):
    """A flat message, and the same memory as its leaves.

    Args:
        flat: What travels.
        views: One per leaf.
        rows: All leaves one after another, where they differ in their first dim only.
    """

    flat: Tensor
    views: list[Tensor]
    rows: Tensor | None

    def fill(self, leaves: list[Tensor]) -> None:
        """Copy the leaves into the message; ``cat`` takes half the time where it can."""
        if self.rows is not None:
            torch.cat(leaves, out=self.rows)
        else:
            torch._foreach_copy_(self.views, leaves)

    def copies(self) -> Sequence[Tensor]:
        """Return the leaves as new tensors; torch makes them in one call where it can."""
        if self.rows is None:
            return [view.clone() for view in self.views]
        sizes = [view.shape[0] for view in self.views]
        # torch's stub says that it returns nothing
        leaves: Sequence[Tensor] = torch.split_with_sizes_copy(self.rows, sizes)  # type: ignore[func-returns-value, assignment]
        return leaves


@dataclass(slots=True)
class Pack:
    """Small leaves of one dtype that travel as one flat message.

    Buffers are kept: a call that runs again reuses them once they are free.
    """

    indices: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    _free: dict[int, list[Buffer]] = field(default_factory=lambda: defaultdict(list))

    def take(self, device: torch.device) -> Buffer:
        """Return a buffer that nobody uses."""
        try:
            return self._free[0 if device.type == "cpu" else _stream_of(device)].pop()
        except IndexError:
            sizes = [math.prod(shape) for shape in self.shapes]
            # Outside inference mode, or a kept buffer could not be written to after it.
            with torch.inference_mode(mode=False), torch.no_grad():
                flat = torch.empty(sum(sizes), dtype=self.dtype, device=device)
                pieces = flat.split(sizes)
                views = [p.view(s) for p, s in zip(pieces, self.shapes, strict=True)]
                rows = {shape[1:] for shape in self.shapes if shape}
                joins = len(rows) == 1 and () not in self.shapes and 0 not in sizes
                return Buffer(flat, views, flat.view(-1, *rows.pop()) if joins else None)

    def give(self, buffer: Buffer) -> None:
        """Hand a buffer back, once its message has been moved.

        On a GPU that is to say: to the stream that waits for it. Another must not take it.
        """
        flat = buffer.flat
        if flat.is_cpu:
            self._free[0].append(buffer)
            return
        flat.record_stream(torch.get_device_module(flat.device).current_stream(flat.device))
        self._free[_stream_of(flat.device)].append(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""
        return sum(Leaf(shape, self.dtype).nbytes for shape in self.shapes)


def _stream_of(device: torch.device) -> int:
    stream = torch.get_device_module(device).current_stream(device)
    return int(stream.stream_id)


class PackedMessage(NamedTuple):
    """Many tensors that travel as one message."""

    pack: Pack
    peer: int
    tag: int
