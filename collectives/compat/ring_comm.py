"""RingComm, the class that ring-attention code passes its blocks with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import runtime
from ..binding import Route
from ..errors import ExchangeError
from ..move import start_move
from ..plan import RIGHTWARD, Lane, Plan
from .hidden import binding_of, members

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..pending import Pending

__all__ = ["RingComm"]


class RingComm:
    """Passes tensors to the next rank of a ring, in three steps: send_recv, commit, wait.

    For hand-written ``autograd.Function``s that come with a backward of their own: nothing here is
    differentiable. New code is shorter, and differentiable, with ``Exchange.ring_pass``. What is
    different from the original: one rank is a ring too (gloo cannot send to itself), strided
    tensors arrive right, and ranks that do not agree get an error instead of garbage.

    Args:
        process_group: Whose ranks form the ring, in the group's order; default: the default group.

    Attributes:
        rank: Of this process in the group.
        world_size: Number of ranks of the group.
        send_rank: Global rank of the next rank, which gets what this one sends.
        recv_rank: Global rank of the one before.

    Raises:
        ContextError: This process is not in the group, or the group is gone.

    Example:
        >>> comm = RingComm()  # a process without a group: a ring of one
        >>> key, value = torch.ones(2), torch.zeros(2)
        >>> next_key, next_value = comm.send_recv_kv(key, value)
        >>> # ... compute with key and value, while the next ones are on their way
        >>> comm.wait()
        >>> next_key
        tensor([1., 1.])

    Source: ring_flash_attn/utils.py and yunchang/ring/utils.py, which are alike.
    """

    def __init__(self, process_group: ProcessGroup | None = None) -> None:
        context = runtime.bind_group(process_group, None, source="RingComm")
        self._group = context.group
        self._sends: list[Tensor] = []
        self._outs: list[Tensor] = []
        self._pending: Pending[object] | None = None
        self.rank, self.world_size = context.rank, context.size
        self._next = (self.rank + 1) % self.world_size
        self._last = (self.rank - 1) % self.world_size
        ranks = members(context.group)
        self.send_rank, self.recv_rank = ranks[self._next], ranks[self._last]

    def send_recv(self, to_send: Tensor, recv_tensor: Tensor | None = None) -> Tensor:
        """Note a tensor that is to be sent by :meth:`commit`.

        Args:
            to_send: Of the same shape and dtype on all ranks; not to be written to before
                :meth:`wait`.
            recv_tensor: What to receive into; a new tensor if left out. No memory that is sent.

        Returns:
            What will hold the tensor of the rank before, after :meth:`wait`.

        Raises:
            ExchangeError: The tensors noted before are on their way: wait for them first.
        """
        self._refuse_while_under_way("send_recv")
        if recv_tensor is None:
            recv_tensor = torch.empty_like(
                to_send, memory_format=torch.contiguous_format, requires_grad=False
            )
        self._sends.append(to_send)
        self._outs.append(recv_tensor)
        return recv_tensor

    def commit(self) -> None:
        """Start to send and receive all that was noted.

        Called by: every rank of the group, with as many tensors.

        Raises:
            ArgumentError: A tensor that cannot be sent or received into.
            ExchangeError: Nothing was noted, or it was called twice.
        """
        self._refuse_while_under_way("commit")
        if not self._sends:
            raise ExchangeError(
                f"RingComm.commit: there is nothing to send {self._here}; call send_recv before"
            )
        sends, outs, self._sends, self._outs = tuple(self._sends), tuple(self._outs), [], []
        binding = binding_of(sends[0].device, self._group)
        route = binding.routes.get("RingComm")
        if route is None:
            lane = Lane(RIGHTWARD, self._next, self._last)
            plan = Plan("RingComm", self.rank, self.world_size, (lane,))
            route = binding.routes["RingComm"] = Route(plan)
        with torch.no_grad():
            self._pending = start_move(binding, route, (sends,), tuple, like=(outs,), out=(outs,))

    def wait(self) -> None:
        """Wait until all that was committed has been sent and received.

        Raises:
            ExchangeError: It did not succeed, or nothing was committed.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            raise ExchangeError(
                f"RingComm.wait: nothing is on its way {self._here}; call commit before"
            )
        with torch.no_grad():
            pending.wait()

    def send_recv_kv(
        self,
        k: Tensor,
        v: Tensor,
        k_buffer: Tensor | None = None,
        v_buffer: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Send a key and a value at once: :meth:`send_recv` for each, and :meth:`commit`.

        Returns:
            What will hold those of the rank before, after :meth:`wait`.
        """
        next_k, next_v = self.send_recv(k, k_buffer), self.send_recv(v, v_buffer)
        self.commit()
        return next_k, next_v

    def _refuse_while_under_way(self, method: str) -> None:
        if self._pending is not None:
            raise ExchangeError(
                f"RingComm.{method}: what was committed is still on its way {self._here}; call"
                " wait() before"
            )

    @property
    def _here(self) -> str:
        return f"(rank {self.rank} of {self.world_size})"
