"""Who sends what to whom, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .plan import Copy, Recv, Send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Plan

__all__ = ["explain"]

_MOST_RANKS = 16


def explain(
    plans: Sequence[Plan], rank: int | None, lane_names: Sequence[str], *, fills: bool = True
) -> str:
    """Return a table with one line per rank; this process's own is marked.

    Args:
        plans: Of all ranks.
        rank: Of this process, if known.
        lane_names: What each lane carries.
        fills: Whether something stands in for what comes from nowhere.
    """
    size = plans[0].size
    lines = [f"{plans[0].op} on {size} rank{'' if size == 1 else 's'}"]
    shown = {plan.rank for plan in plans[:_MOST_RANKS]} | ({rank} if rank is not None else set())
    for plan in plans:
        if plan.rank in shown:
            mark = "*" if plan.rank == rank else " "
            lines.append(
                f"{mark} rank {plan.rank}: {'; '.join(_steps(plan, lane_names, fills=fills))}"
            )
    if len(plans) > len(shown):
        lines.append(f"  ... {len(plans) - len(shown)} more")
    return "\n".join(lines)


def _steps(plan: Plan, lane_names: Sequence[str], *, fills: bool) -> list[str]:
    words = []
    for step in plan.steps:
        carried = lane_names[step.key]
        if isinstance(step, Send):
            words.append(f"sends {carried} to {step.peer}")
        elif isinstance(step, Recv):
            words.append(f"gets {carried} of {step.peer}")
        elif isinstance(step, Copy):
            words.append(f"keeps {carried}")
    words += [
        f"gets the fill for {lane_names[lane.key]}"
        for lane in plan.lanes
        if lane.source is None and fills
    ]
    return words or ["nothing"]
