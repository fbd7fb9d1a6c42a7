"""What a tensor must be to be exchanged: refused here, before anything is posted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C import _functorch
from torch.nn import Parameter

from .dtypes import cannot_hold
from .errors import ArgumentError
from .messages import Leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .binding import Binding
    from .call import Call, Specs
    from .plan import Plan

__all__ = [
    "PLAIN",
    "check_fill",
    "check_lanes",
    "check_loss",
    "check_numbers",
    "check_out",
    "is_wrapped",
    "memory_of",
    "plain",
]

is_wrapped = _functorch.is_functorch_wrapped_tensor

PLAIN = frozenset({Tensor, Parameter})  # what travels as it is, if it is dense
_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def plain(binding: Binding, op: str, x: Tensor) -> Tensor:
    """Return a tensor that is raw memory on the right device, or say why there is none."""
    device = binding.engine.device
    known = type(x) in PLAIN  # to ask for an attribute in vain takes longer
    if not known and hasattr(x, "fake_mode"):
        raise ArgumentError(
            f"{op}: a fake tensor has no data to send {binding.here}; exchange outside of"
            " FakeTensorMode"
        )
    if not known and hasattr(x, "to_local"):
        raise ArgumentError(
            f"{op}: a DTensor is a view of many ranks' data {binding.here}; exchange x.to_local()"
        )
    if x.layout is not torch.strided:
        raise ArgumentError(
            f"{op}: expected a dense tensor, got layout {x.layout} {binding.here}; exchange its"
            " indices and values, or x.to_dense()"
        )
    if x.is_meta:
        raise ArgumentError(
            f"{op}: a meta tensor has no data to send {binding.here}; give shapes through like="
        )
    if x.device != device:
        raise ArgumentError(
            f"{op}: expected a tensor on {device}, got one on {x.device} {binding.here}; move it"
            f" first: x.to({str(device)!r})"
        )
    # A subclass travels as what it wraps: its attributes could not. What was carried out of a
    # torch.func transform that has ended still has its wrapper, which has no memory.
    return _functorch.unwrap_if_dead(x.as_subclass(Tensor))


def check_lanes(binding: Binding, plan: Plan, sends: Specs, recvs: Specs) -> None:
    """Refuse what cannot travel, and a ``like=`` that contradicts what this rank sends itself."""
    for lane, out, into in zip(plan.lanes, sends, recvs, strict=True):
        for leaf in out:
            if leaf.dtype in _QUANTIZED:
                raise ArgumentError(
                    f"{plan.op}: a quantized tensor ({leaf}) loses its scale {binding.here};"
                    " exchange x.int_repr() and the scale"
                )
        if lane.source == binding.engine.rank and out != into:
            raise ArgumentError(
                f"{plan.op}: like= expects {into}, but what this rank sends to itself is"
                f" {out} {binding.here}"
            )


def check_fill(binding: Binding, call: Call, fill: float) -> None:
    """Refuse a fill that is no number, or that a dtype of the result cannot hold."""
    if not isinstance(fill, bool | int | float | complex):
        raise ArgumentError(
            f"{call.plan.op}: fill must be a number, got {type(fill).__name__} {binding.here}; fill"
            " with a tensor afterwards, where the topology says that there is no source"
        )
    for dtype in {leaf.dtype for leaf in call.outputs}:
        if reason := cannot_hold(dtype, fill):
            raise ArgumentError(
                f"{call.plan.op}: fill={fill!r} does not go into a tensor of {dtype}"
                f" {binding.here}: {reason}; choose another fill, or shift dtypes one by one"
            )


def check_out(
    binding: Binding, call: Call, outs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> bool:
    """Refuse buffers of another kind than what arrives, or that share memory.

    Returns:
        Whether a buffer has gaps: is not contiguous.
    """
    device, outputs, gaps = binding.engine.device, call.outputs, False
    used = set(binding.engine.state.landing)
    # memory_of() is spelt out for what has no offset: a call for each of many leaves would show
    for x in inputs:
        used.add(memory_of(x) if x.storage_offset() else x.data_ptr())
    for buffer, (shape, dtype) in zip(outs, outputs):  # noqa: B905 - one each; strict costs time
        memory = memory_of(buffer) if buffer.storage_offset() else buffer.data_ptr()
        if (
            buffer.shape != shape
            or buffer.dtype is not dtype
            or buffer.requires_grad
            or buffer.device != device
            or (memory in used and memory != 0)
        ):
            raise ArgumentError(_wrong_buffer(binding, call, Leaf(shape, dtype), buffer))
        if not buffer.is_contiguous():
            gaps = True
            if _overlaps_itself(buffer):
                raise ArgumentError(_wrong_buffer(binding, call, Leaf(shape, dtype), buffer))
        used.add(memory)
    return gaps


def _wrong_buffer(binding: Binding, call: Call, leaf: Leaf, buffer: Tensor) -> str:
    op, device = call.plan.op, binding.engine.device
    if buffer.shape != leaf.shape or buffer.dtype is not leaf.dtype:
        got = Leaf(tuple(buffer.shape), buffer.dtype)
        return f"{op}: out= must hold a {leaf}, got {got} {binding.here}"
    if buffer.device != device or buffer.requires_grad:
        return (
            f"{op}: out= must be a plain buffer on {device} that needs no gradient, got one on"
            f" {buffer.device} with requires_grad={buffer.requires_grad} {binding.here}"
        )
    if not buffer.is_contiguous() and _overlaps_itself(buffer):
        return f"{op}: out= is expanded: many elements are one memory {binding.here}; use .clone()"
    return (
        f"{op}: out= shares memory with a tensor that is sent, with another buffer, or with one of"
        f" an exchange that has not been waited for {binding.here}; give each a memory of its own"
    )


def check_loss(loss: object) -> None:
    """Refuse what no gradient can come from."""
    if not isinstance(loss, Tensor) or not (loss.is_floating_point() or loss.is_complex()):
        raise ArgumentError(f"join: expected a floating-point tensor, got {loss!r}")


def check_numbers(numbers: tuple[object, ...]) -> None:
    """Refuse steps that are no numbers: they would not be alike on all ranks."""
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise ArgumentError(f"mark_step: expected ints, such as epoch and step, got {numbers}")


def memory_of(x: Tensor) -> int:
    """Return where the storage of a tensor begins; cheaper than asking the storage."""
    return int(x.data_ptr() - x.storage_offset() * x.element_size())


def _overlaps_itself(x: Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))
