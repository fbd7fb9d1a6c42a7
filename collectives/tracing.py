"""Whether code is being traced, and so must not move anything."""

from __future__ import annotations

import torch
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.fx.experimental.proxy_tensor import get_proxy_mode

__all__ = ["is_exporting", "recorder", "recording", "tracing"]


def _never() -> bool:
    return False


# torch < 2.7 does not say; what it exports then takes the chain for its own.
is_exporting = getattr(torch.compiler, "is_exporting", _never)
_modes = torch._C._len_torch_dispatch_stack


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
