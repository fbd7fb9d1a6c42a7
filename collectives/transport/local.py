"""One process and no process group: nothing ever travels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from .. import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from . import Work

__all__ = ["LocalTransport"]


class LocalTransport:
    """Size 1: the engine copies, so neither ``send`` nor ``recv`` is ever called.

    Args:
        alone: Stay local although a process group may appear.
    """

    rank = 0
    size = 1
    batch = None
    announce = None
    label = "alone"

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    @property
    def send(self) -> Callable[[list[torch.Tensor], int, int], Work]:
        """Never called."""
        return _refuse

    @property
    def recv(self) -> Callable[[list[torch.Tensor], int, int], Work]:
        """Never called."""
        return _refuse

    def alive(self) -> bool:
        """Be local only as long as there is no process group: then the context is asked again."""
        return self._alone or not runtime.is_initialized()

    def close(self) -> None:
        """Nothing to let go of."""


def _refuse(tensors: list[torch.Tensor], peer: int, tag: int) -> NoReturn:
    raise AssertionError(
        f"a message of {len(tensors)} tensors to rank {peer} (tag {tag}) at size 1"
    )
