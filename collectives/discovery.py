"""From a runtime's object to a Context: what the adapters of Lightning and Fabric share.

A Trainer and a Fabric name rank, size and device alike, so one structural type reads both, from
whichever package they come. What the caller chose (group, mesh axis, alone) is a value that any
copy may carry: a process group cannot be pickled, so a pickled choice carries the ranks instead.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Protocol

from .errors import ArgumentError, ContextError
from .runtime import bind, default_group, group_ranks, is_group, is_initialized

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.distributed import ProcessGroup

    from .context import Context

__all__ = [
    "GroupChoice",
    "MeshLike",
    "RuntimeLike",
    "StrategyLike",
    "bind_runtime",
    "describe",
    "has_attributes",
]


class StrategyLike(Protocol):
    """What is read of a strategy; a ``device_mesh`` as well, where it has one."""

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        ...


class RuntimeLike(Protocol):
    """What a Trainer and a Fabric have in common."""

    @property
    def global_rank(self) -> int:
        """Rank among all processes."""
        ...

    @property
    def local_rank(self) -> int:
        """Rank on this host."""
        ...

    @property
    def node_rank(self) -> int:
        """Number of this host."""
        ...

    @property
    def world_size(self) -> int:
        """Number of processes."""
        ...

    @property
    def strategy(self) -> StrategyLike:
        """How the processes work together."""
        ...


class MeshLike(Protocol):
    """What is read of a ``DeviceMesh``."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of its axes."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each axis."""
        ...

    def get_group(self, mesh_dim: str) -> ProcessGroup:
        """Return the group of this process along one axis."""
        ...


class GroupChoice:
    """With whom the caller wants to exchange: a value that can be copied and pickled.

    Args:
        group: Over this group; ``None``: the runtime's.
        mesh_axis: Over this axis of the runtime's device mesh.
        alone: With nobody.

    Raises:
        ArgumentError: More than one of them, or something else than a process group.
    """

    __slots__ = ("_group", "_ranks", "alone", "mesh_axis")

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        mesh_axis: str | None = None,
        alone: bool = False,
    ) -> None:
        chosen = [
            f"group={group!r}" if group is not None else "",
            f"mesh_axis={mesh_axis!r}" if mesh_axis is not None else "",
            "alone=True" if alone else "",
        ]
        if len(chosen) - chosen.count("") > 1:
            raise ArgumentError(
                f"adapter: expected one of group=, mesh_axis= and alone=, got"
                f" {' and '.join(filter(None, chosen))}; leave out what does not apply"
            )
        if group is not None and not is_group(group):
            raise ArgumentError(
                f"adapter: group=: expected a ProcessGroup, got {type(group).__name__}; make one"
                " with torch.distributed.new_group()"
            )
        self._group = group
        self._ranks: tuple[int, ...] | None = None
        self.mesh_axis = mesh_axis
        self.alone = alone

    def __deepcopy__(self, memo: dict[int, object]) -> GroupChoice:
        """Return this very value: it never changes, and a copy uses the same group."""
        return self

    def __getstate__(self) -> tuple[tuple[int, ...] | None, str | None, bool]:
        """Put the ranks in place of the group, which cannot be pickled."""
        ranks = self._ranks if self._group is None else group_ranks(self._group)
        return ranks, self.mesh_axis, self.alone

    def __setstate__(self, state: tuple[tuple[int, ...] | None, str | None, bool]) -> None:
        """Look for the group by its ranks from now on."""
        self._group = None
        self._ranks, self.mesh_axis, self.alone = state

    def resolve(self, strategy: object = None) -> ProcessGroup | None:
        """Return the chosen group; ``None``: the default one.

        Args:
            strategy: Of the runtime, which may have a device mesh; ``None``: there is no runtime.

        Raises:
            ContextError: The mesh asks for a choice or does not have the chosen axis; the group
                was lost when the choice was pickled, and the default group has other ranks.
        """
        if self._ranks is not None:
            return self._found_again(self._ranks)
        if self._group is not None or self.alone or not is_initialized():
            return self._group  # bind() says what is missing
        return _mesh_group(strategy, self.mesh_axis)

    @staticmethod
    def _found_again(ranks: tuple[int, ...]) -> ProcessGroup:
        default = default_group()
        if default is None or group_ranks(default) != ranks:
            raise ContextError(
                f"group=: the adapter was pickled, and its group of ranks {list(ranks)} cannot be:"
                " expected a default group of these ranks in its place, got"
                f" {'none' if default is None else list(group_ranks(default))}; make a new adapter"
                " with group= here"
            )
        return default


def bind_runtime(runtime: RuntimeLike, choice: GroupChoice, *, source: str, hint: str) -> Context:
    """Return the context that a Trainer or a Fabric describes, after the checks of ``bind``.

    Args:
        runtime: The Trainer or Fabric.
        choice: With whom to exchange.
        source: Its name, for error texts.
        hint: When to ask instead, for error texts.

    Raises:
        ContextError: See :func:`collectives.runtime.bind`, and where a mesh asks for a choice.
    """
    return bind(
        rank=runtime.global_rank,
        size=runtime.world_size,
        local_rank=runtime.local_rank,
        node_rank=runtime.node_rank,
        device=runtime.strategy.root_device,
        source=source,
        hint=hint,
        group=choice.resolve(runtime.strategy),
        alone=choice.alone,
    )


def has_attributes(candidate: object, names: Iterable[str]) -> bool:
    """Return whether an instance has all ``names``, without running any property."""
    if isinstance(candidate, type):
        return False
    missing = object()
    return all(inspect.getattr_static(candidate, name, missing) is not missing for name in names)


def describe(candidate: object) -> str:
    """Return what ``candidate`` is, for error texts."""
    if isinstance(candidate, type):
        return f"the class {candidate.__name__} itself"
    return f"an instance of {type(candidate).__module__}.{type(candidate).__qualname__}"


def _mesh_group(strategy: object, axis: str | None) -> ProcessGroup | None:
    mesh = _device_mesh(strategy)
    kind = "runtime" if strategy is None else type(strategy).__name__
    if mesh is None:
        if axis is None:
            return None
        raise ContextError(
            f"mesh_axis={axis!r}: expected a strategy with a device mesh, got"
            f" {'no Trainer or Fabric' if strategy is None else kind}; leave mesh_axis= out, or use"
            " a strategy that has one, such as ModelParallelStrategy"
        )
    names = tuple(mesh.mesh_dim_names or ())
    shape = tuple(mesh.shape)
    if axis is not None:
        if axis not in names:
            raise ContextError(
                f"mesh_axis={axis!r}: expected one of {list(names)}, the axes of the {kind}'s"
                f" device mesh of shape {shape}"
            )
        return mesh.get_group(axis)
    if sum(size > 1 for size in shape) > 1:
        raise ContextError(
            f"mesh_axis is missing: expected one of {list(names)}, the axes of the {kind}'s device"
            f" mesh of shape {shape}; give the adapter mesh_axis=, or group= to choose the ranks"
        )
    return None  # one real axis: the default group has the same ranks


def _device_mesh(strategy: object) -> MeshLike | None:
    try:
        mesh: MeshLike | None = getattr(strategy, "device_mesh", None)
    except RuntimeError:  # ModelParallelStrategy before its processes are up
        return None
    return mesh
