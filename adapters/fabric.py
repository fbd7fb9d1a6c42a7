"""Where a Fabric runs: for ``lightning.fabric`` and ``lightning_fabric`` alike; imports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from collectives.discovery import (
    GroupChoice,
    RuntimeLike,
    bind_runtime,
    describe,
    has_attributes,
)
from collectives.errors import ArgumentError, ContextError
from collectives.runtime import bind_group, default_group

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from collectives.context import Context

__all__ = ["FabricAdapter", "FabricLike"]

_HINT = (
    "call fabric.launch() first, and give Fabric the devices= and strategy= for every process that"
    " was started"
)


class FabricLike(RuntimeLike, Protocol):
    """What is read of a Fabric."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        ...


class FabricAdapter:
    """Finds rank, size, device and group of a Fabric; for custom training loops.

    May be made before ``fabric.launch()``: it asks the Fabric at the first exchange. Works with
    one device and no process group, where every exchange is a local copy. A deep copy shares the
    Fabric; a pickled one leaves it behind and binds to the default group of the process that it
    comes to.

    Args:
        fabric: The Fabric, of ``lightning.fabric`` or ``lightning_fabric``.
        group: Exchange over this group; ``None``: over all of Fabric's processes.
        mesh_axis: Exchange along this axis of the strategy's device mesh; must be given where the
            mesh has more than one axis of more than one rank.
        alone: Exchange with nobody where the launcher started several processes, on purpose.

    Raises:
        ArgumentError: ``fabric`` is no Fabric, or more than one of the other three was given.
    """

    def __init__(
        self,
        fabric: FabricLike,
        *,
        group: ProcessGroup | None = None,
        mesh_axis: str | None = None,
        alone: bool = False,
    ) -> None:
        names = ("global_rank", "local_rank", "node_rank", "world_size", "strategy", "device")
        if not has_attributes(fabric, names):
            raise ArgumentError(
                f"FabricAdapter: expected a Fabric, got {describe(fabric)}; pass the object that"
                " fabric.launch() was or will be called on"
            )
        self._fabric: FabricLike | None = fabric
        self._choice = GroupChoice(group, mesh_axis=mesh_axis, alone=alone)

    def __deepcopy__(self, memo: dict[int, Any]) -> FabricAdapter:
        """Share the Fabric: a copied module runs in the same process."""
        copy = FabricAdapter.__new__(FabricAdapter)
        copy._fabric, copy._choice = self._fabric, self._choice
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """Leave the Fabric behind: it describes this process only."""
        return {"_fabric": None, "_choice": self._choice}

    def context(self) -> Context:
        """Return where this process stands now.

        Raises:
            ContextError: ``fabric.launch()`` was not called yet; Fabric runs one process where
                the launcher started several; Fabric and ``torch.distributed`` disagree; the mesh
                asks for an axis; or this is a DataLoader worker. See ``collectives.runtime.bind``.
        """
        if self._fabric is not None:
            return bind_runtime(self._fabric, self._choice, source="Fabric", hint=_HINT)
        if default_group() is None and not self._choice.alone:
            raise ContextError(
                "FabricAdapter: it was pickled and has no Fabric here: expected a default process"
                " group in its place, got none; make a new FabricAdapter(fabric) in this process"
            )
        return bind_group(
            self._choice.resolve(),
            None,
            source="process group",
            hint=_HINT,
            alone=self._choice.alone,
        )
