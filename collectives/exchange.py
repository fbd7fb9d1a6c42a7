"""What users call. Each family of operations is a class of its own, in a module of its own."""

from __future__ import annotations

from .collective import Collectives
from .gossip import Gossip
from .halo import Halos
from .rings import Rings

__all__ = ["Exchange"]


class Exchange(Collectives, Gossip, Halos, Rings):
    """Exchanges tensors with neighbours, differentiably, in every runtime.

    Every rank of the topology calls the same operations in the same order. Results are new
    tensors, never views of an input; a ring of one gives copies. It may be made before any rank is
    known (in ``LightningModule.__init__``): everything resolves at first use. It can be pickled and
    deep-copied; a copy binds anew, and never turns into a local one.

    Args:
        topology: A :class:`~collectives.Ring`, :class:`~collectives.Mesh`,
            :class:`~collectives.Graph` or :class:`~collectives.Schedule`, or a function of the
            number of ranks that makes one: ``Exchange(Ring, adapter)``.
        adapter: Finds rank, device and group: see ``adapters``.
        name: Part of the signature that ranks must agree on, and of every error text.
        timeout: Seconds that each exchange may take, unless a call brings its own.
        verify: ``"auto"`` puts a digest of each exchange's signature into its messages' tags, so
            that a message of another exchange cannot match; where the backend has no tags (NCCL)
            two ranks compare headers of 64 bytes before anything new between them. ``"always"``:
            before every exchange, forward and backward, so that both ends of a mismatch know within
            a round trip. ``"off"``: neither, and nobody watches over waits. The same on all ranks.

    Example:
        >>> from collectives.testing import simulate
        >>> def program(adapter):
        ...     exchange = Exchange(Ring, adapter)
        ...     mine = torch.tensor([float(exchange.rank)])
        ...     from_left, from_right = exchange.exchange(to_left=mine, to_right=mine)
        ...     return from_left.item(), from_right.item()
        >>> simulate(3, program)
        [(2.0, 1.0), (0.0, 2.0), (1.0, 0.0)]

    The gradient is that of the **sum over ranks** of the losses. DDP then divides by the number of
    ranks: with a mean local loss the DDP gradient equals the single-process one, with no factor.
    """
