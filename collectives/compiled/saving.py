"""What compilers may compute again in backward, to save memory."""

from __future__ import annotations

from torch._functorch import config
from torch.fx import traceback

from ..errors import ArgumentError
from .script import Script

__all__ = ["refuse_to_run_again"]

# What is said within ``torch.autograd.graph.region_activation_memory_budget``.
_REGION = "_region_activation_memory_budget"


def refuse_to_run_again(script: Script) -> None:
    """Refuse options by which each rank's compiler decides alone what backward computes again.

    An operator that it does not know costs nothing, it thinks; so it would be exchanged again, and
    not on the ranks whose graph is another.

    Raises:
        ArgumentError: Names the option.
    """
    option = _option()
    if option:
        raise ArgumentError(
            f"{script.op}: {option} lets the compiler of each rank decide what is computed, and"
            f" exchanged, again in backward (rank {script.rank} of {script.size}); leave it as it"
            " was, and say what shall be computed again: torch.utils.checkpoint"
        )


def _option() -> str:
    """Return the option in words; "" where there is none (torch has not all in all versions)."""
    budget = getattr(config, "activation_memory_budget", 1.0)
    budget = getattr(traceback, "current_meta", {}).get("custom", {}).get(_REGION, budget)
    if budget < 1:
        return f"activation_memory_budget={budget}"
    for name, usual in (
        ("aggressive_recomputation", False),
        ("ban_recompute_not_in_allowlist", True),
    ):
        if getattr(config, name, usual) is not usual:
            return f"torch._functorch.config.{name}={not usual}"
    return ""
