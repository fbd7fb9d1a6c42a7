"""Exchanges inside torch.func transforms: batches that vmap hides, and tensors in its wrappers.

Under ``vmap`` a tensor seems to have one dim less than it has. What travels is the whole of it, the
batch in front, as one exchange: so its size is part of the shapes that ranks must agree on.

Where gradients or tangents travel, whether a rank's are batched depends on what its own loss uses
(an unused output has plain zeros), and no rank can see another's. So these always go with the dims
of all batches that are open, on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from .call import MOST_CALLS, Call, Specs
from .flight import Flight
from .messages import Leaf

__all__ = ["in_every_batch", "outside", "transformed", "with_batch"]

transformed = torch._C._are_functorch_transforms_active


def with_batch(
    flight: Flight, size: int, in_dims: Sequence[int | None], inputs: Sequence[Tensor]
) -> tuple[Flight, list[Tensor]]:
    """Return the flight of a whole batch, and its tensors, the batch in front.

    Args:
        flight: As it looks inside ``vmap``; it is not started.
        size: Of the batch.
        in_dims: For each tensor, which dim is the batch; ``None``: all of the batch share it.
        inputs: One tensor per input of the call.
    """
    call = flight.call.batches.get(size)
    if call is None:
        if len(flight.call.batches) >= MOST_CALLS:
            flight.call.batches.clear()
        call = flight.call.batches[size] = _batched(flight.call, size)
    whole = Flight(
        flight.engine, call, flight.sequence, flight.deadline, None, flight.fill, flight.record
    )
    return whole, [_in_front(x, dim, size) for x, dim in zip(inputs, in_dims, strict=True)]


def outside() -> AbstractContextManager[object]:
    """Return what suspends all transforms: what ranks tell each other is no part of them."""
    return temporarily_clear_interpreter_stack() if transformed() else nullcontext()


def in_every_batch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients or tangents as parts of all batches that are open around them."""
    found = list(tensors)
    for interpreter in _functorch.get_interpreter_stack() or ():
        if interpreter.key() == _functorch.TransformType.Vmap:
            size = _functorch.CVmapInterpreterPtr(interpreter).batchSize()
            found = [x + _nothing(x, size, interpreter.level()) for x in found]
    return found


def _nothing(like: Tensor, size: int, level: int) -> Tensor:
    """Return a zero for each element of a batch; adding it makes a tensor part of the batch.

    The batch may be an outer one, and a tensor made here would belong to the innermost transform.
    """
    with outside():
        zeros = torch.zeros(size, dtype=like.dtype, device=like.device)
        return _functorch._add_batch_dim(zeros, 0, level)


def _in_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _batched(call: Call, size: int) -> Call:
    return Call(
        call.plan,
        _deeper(call.sends, size),
        _deeper(call.recvs, size),
        name=call.name,
        topology=call.topology,
        grad=call.mode,
        phase=call.phase,
        verify=call.verify,
        owner=call.owner,
        trees=call.trees,
    )


def _deeper(specs: Specs, size: int) -> Specs:
    return tuple(tuple(Leaf((size, *shape), dtype) for shape, dtype in lane) for lane in specs)
