"""What this library needs of torch, said before anything of it is imported."""

from __future__ import annotations

import re

__all__ = ["OLDEST_TORCH", "what_is_missing"]

OLDEST_TORCH = (2, 4)


def what_is_missing(version: str, *, distributed: bool) -> str:
    """Return why this library cannot be used with a torch; "" if it can.

    Args:
        version: Of torch.
        distributed: It was built with ``torch.distributed``.

    Example:
        >>> what_is_missing("2.13.0+cpu", distributed=True)
        ''
    """
    oldest = ".".join(map(str, OLDEST_TORCH))
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < OLDEST_TORCH:
        return (
            f"torch-collectives needs torch {oldest} or newer, got {version}; run `pip install -U"
            f" 'torch>={oldest}'`"
        )
    if not distributed:
        return (
            f"torch-collectives needs a torch that was built with torch.distributed, got {version}"
            " without (USE_DISTRIBUTED=0); install a wheel from pytorch.org"
        )
    return ""


def _check() -> None:
    import torch

    missing = what_is_missing(str(torch.__version__), distributed=torch.distributed.is_available())
    if missing:
        raise ImportError(missing)


_check()
