"""Where a LightningModule runs, under a Trainer or a Fabric; and a callback for an Exchange.

For ``lightning.pytorch`` and ``pytorch_lightning`` alike: whatever has the right attributes will
do, and neither is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from collectives.discovery import (
    GroupChoice,
    RuntimeLike,
    bind_runtime,
    describe,
    has_attributes,
)
from collectives.errors import ArgumentError, ContextError
from collectives.runtime import bind_group, default_group

from .lightning_callback import ExchangeLike, exchange_callback

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from collectives.context import Context

__all__ = ["ExchangeLike", "LightningAdapter", "ModuleLike", "TrainerLike", "exchange_callback"]

_TRAINER_HINT = (
    "exchange in setup() or later, inside the processes that the Trainer starts, and give the"
    " Trainer the devices= and strategy= for every process that was started"
)
_FABRIC_HINT = "call fabric.launch() before the first exchange"


class FitLoopLike(Protocol):
    """What is read of a Trainer's loop over training batches."""

    @property
    def batch_idx(self) -> int:
        """Number of the batch in this epoch; -1 before the first."""
        ...


class TrainerLike(RuntimeLike, Protocol):
    """What is read of a Trainer."""

    @property
    def current_epoch(self) -> int:
        """Number of this epoch."""
        ...

    @property
    def global_step(self) -> int:
        """Optimizer steps so far."""
        ...

    @property
    def fit_loop(self) -> FitLoopLike:
        """Its loop over epochs."""
        ...


class ModuleLike(Protocol):
    """What is read of a LightningModule."""

    @property
    def trainer(self) -> TrainerLike:
        """Its Trainer; raises RuntimeError while it has none."""
        ...

    @property
    def fabric(self) -> RuntimeLike | None:
        """Its Fabric, when it was set up by one."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        ...


class LightningAdapter:
    """Finds rank, size, device and group of a LightningModule or a Trainer.

    May be made in the module's ``__init__``, before any rank is known: it asks the Trainer at the
    first exchange, which must come in ``setup()`` or later. Works with one device and no process
    group, where every exchange is a local copy; and for a module that runs under Fabric.

    A deep copy or a pickled copy of the module gets an adapter that refers to the copy. Pickling
    leaves a Trainer behind. An adapter whose module has no Trainer binds to the default process
    group, if there is one.

    Args:
        module_or_trainer: The LightningModule (``self``) or the Trainer.
        group: Exchange over this group; ``None``: over all of the Trainer's processes.
        mesh_axis: Exchange along this axis of the strategy's device mesh; must be given where the
            mesh has more than one axis of more than one rank.
        alone: Exchange with nobody: in a unit test without a Trainer, or where the launcher
            started several processes and the Trainer runs one on purpose.

    Raises:
        ArgumentError: Neither a LightningModule nor a Trainer, or more than one of the other
            three was given.
    """

    def __init__(
        self,
        module_or_trainer: ModuleLike | TrainerLike,
        *,
        group: ProcessGroup | None = None,
        mesh_axis: str | None = None,
        alone: bool = False,
    ) -> None:
        self._module: ModuleLike | None = None
        self._trainer: TrainerLike | None = None
        if has_attributes(module_or_trainer, ("trainer", "fabric", "device")):
            self._module = cast("ModuleLike", module_or_trainer)
        elif has_attributes(module_or_trainer, ("strategy", "global_rank", "current_epoch")):
            self._trainer = cast("TrainerLike", module_or_trainer)
        else:
            raise ArgumentError(
                "LightningAdapter: expected a LightningModule or a Trainer, got"
                f" {describe(module_or_trainer)}; pass self in the module's __init__, or the"
                " Trainer, or use FabricAdapter or RawDDPAdapter"
            )
        self._choice = GroupChoice(group, mesh_axis=mesh_axis, alone=alone)

    def __deepcopy__(self, memo: dict[int, Any]) -> LightningAdapter:
        """Refer to the module's copy when it is the module that is copied; share the Trainer."""
        copy = LightningAdapter.__new__(LightningAdapter)
        copy._module = memo.get(id(self._module), self._module)
        copy._trainer, copy._choice = self._trainer, self._choice
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """Leave the Trainer behind: it describes this process only."""
        return {**self.__dict__, "_trainer": None}

    def context(self) -> Context:
        """Return where this process stands now.

        Raises:
            ContextError: The module has no Trainer yet and there is no process group; its
                processes are not up; the Trainer runs one process where the launcher started
                several; Trainer and ``torch.distributed`` disagree; the mesh asks for an axis; or
                this is a DataLoader worker. See ``collectives.runtime.bind``.
        """
        # a module under Fabric says rank 0 on every rank, only its Fabric knows
        fabric = None if self._module is None else self._module.fabric
        if fabric is not None:
            return bind_runtime(fabric, self._choice, source="Fabric", hint=_FABRIC_HINT)
        trainer = self._attached_trainer()
        if trainer is not None:
            return bind_runtime(trainer, self._choice, source="Trainer", hint=_TRAINER_HINT)
        if default_group() is None and not self._choice.alone:
            raise ContextError(
                "LightningAdapter: no Trainer: expected a module that is attached to one, or a"
                f" default process group, got neither; {_TRAINER_HINT}; in a unit test without a"
                " Trainer use LightningAdapter(module, alone=True)"
            )
        device = None if self._module is None else self._module.device
        return bind_group(
            self._choice.resolve(),
            device,
            source="process group",
            hint=_TRAINER_HINT,
            alone=self._choice.alone,
        )

    def step(self) -> tuple[int, ...]:
        """Return epoch, optimizer steps and batch of the Trainer's fit; () without a Trainer.

        They become part of the signature of every exchange, so that ranks out of step are found,
        unless steps are marked by hand (``exchange.mark_step``).
        """
        if self._module is not None and self._module.fabric is not None:
            return ()
        trainer = self._attached_trainer()
        if trainer is None:
            return ()
        return (trainer.current_epoch, trainer.global_step, trainer.fit_loop.batch_idx)

    def _attached_trainer(self) -> TrainerLike | None:
        if self._module is None:
            return self._trainer
        try:
            return self._module.trainer
        except RuntimeError:  # Lightning raises it while the module is not attached
            return None
