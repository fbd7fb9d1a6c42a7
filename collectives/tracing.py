"""Whether code is being traced, and so must not move anything."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar, cast

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.fx.experimental.proxy_tensor import get_proxy_mode

__all__ = ["is_exporting", "recorder", "recording", "skip_frames", "tracing", "untraced"]


F = TypeVar("F", bound=Callable[..., object])


def _never() -> bool:
    return False


# torch < 2.7 does not say; what it exports then takes the chain for its own.
is_exporting = getattr(torch.compiler, "is_exporting", _never)
_modes = torch._C._len_torch_dispatch_stack
_frames = torch._C._dynamo.eval_frame


def tracing() -> bool:
    """Whether ``torch.compile``, ``torch.export`` or ``make_fx`` traces this code.

    It is asked in every exchange, so the cheapest questions come first. All but Dynamo trace with
    a dispatch mode, and what compiles in another thread is nothing to this one.
    """
    return is_dynamo_compiling() or (_modes() > 0 and (is_compiling() or recording()))


def recording() -> bool:
    """Whether operators of this thread are recorded while Python runs as ever: ``make_fx``."""
    return recorder() is not None


def recorder() -> object:
    """Return the mode that records them, or that prepares to (AOT autograd), or ``None``."""
    mode = get_proxy_mode()
    if mode is not None:
        return mode
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)


def untraced(function: F) -> F:
    """Keep Dynamo out of a function of ours, and out of all that it calls.

    For what others enter than callers: a loop that asks for the next block, autograd, the garbage
    collector. ``torch.compiler.disable`` would import Dynamo, and put a call around each.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # where a graph calls it
    skip_frames(function)
    return function


def skip_frames(function: Callable[..., object]) -> None:
    """Let Dynamo not compile a function that is called outside of a graph, nor what it calls.

    Where a caller's graph has ended, it takes each frame that it meets for code to compile.
    """
    if hasattr(_frames, "_FrameExecStrategy"):  # torch >= 2.7
        skip = _frames._FrameAction.SKIP
        strategy = _frames._FrameExecStrategy(skip, skip)
        _frames.set_code_exec_strategy(cast("FunctionType", function).__code__, strategy)
