"""Lightning and Fabric on ranks of the pool.

Both leave a default process group alone that already exists, and ask a ClusterEnvironment for
rank and size: this one reads them from that group. So ``Trainer(strategy="ddp")`` and
``Fabric(strategy="ddp")`` run without a launcher and without a port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

__all__ = ["pool_environment"]

E = TypeVar("E")


def pool_environment(base: Callable[[], E]) -> E:
    """Return a ClusterEnvironment of the rank that this is called on.

    Args:
        base: The abstract ClusterEnvironment of ``lightning.fabric.plugins.environments`` or of
            ``lightning_fabric.plugins.environments``: each of them accepts only its own.
    """
    environment = type("PoolEnvironment", (_FromDefaultGroup, cast("type[E]", base)), {})
    return cast("E", environment())


class _FromDefaultGroup:
    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0  # nobody connects to it: the group exists

    @staticmethod
    def detect() -> bool:
        return True

    def world_size(self) -> int:
        return dist.get_world_size()

    def set_world_size(self, size: int) -> None:
        assert size == self.world_size()

    def global_rank(self) -> int:
        return dist.get_rank()

    def set_global_rank(self, rank: int) -> None:
        assert rank == self.global_rank()

    def local_rank(self) -> int:
        return dist.get_rank()

    def node_rank(self) -> int:
        return 0
