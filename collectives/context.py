"""What an exchange must know about the process that it runs in.

An :class:`Adapter` finds it in one runtime (Lightning, Fabric, a script); the exchange asks for
it at first use, so that it can be made before any rank is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from .errors import ContextError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from .transport import Transport

__all__ = ["Adapter", "Context", "Placed"]


@dataclass(frozen=True, slots=True)
class Context:
    """Where this process stands.

    Args:
        rank: Position in ``group``: the position in the topology.
        size: Number of ranks of ``group``.
        local_rank: Position among the processes of this host.
        node_rank: Number of this host.
        device: Where exchanged tensors live.
        group: Over which messages travel; ``None`` when this process is alone.
        source: What the values were read from, for error texts ("Trainer", "Fabric", "script").
        transport: Moves the bytes instead of ``group`` (the simulator hands over its own).
        alone: The caller asked for local copies, whatever the launcher started.
    """

    rank: int
    size: int
    local_rank: int
    node_rank: int
    device: torch.device
    group: ProcessGroup | None
    source: str
    transport: Transport | None = None
    alone: bool = False

    def __deepcopy__(self, memo: dict[int, object]) -> Context:
        """Return this very value: a copy in the same process stands in the same place."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: another process stands elsewhere."""
        raise ContextError(
            f"pickle: a Context belongs to its process (rank {self.rank} of {self.size}); keep the"
            " adapter instead, and call adapter.context() where it arrives"
        )


class Adapter(Protocol):
    """Finds the :class:`Context` of one runtime."""

    def context(self) -> Context:
        """Return where this process stands now.

        Raises:
            ContextError: It is too early, too late, or the runtime disagrees with
                ``torch.distributed``; the text says what to do.
        """
        ...


class Placed(Protocol):
    """A binding, or what stands for it: who this rank is, for error texts."""

    here: str
