"""Every error that this library raises of its own accord.

::

    CollectivesError
    ├── TopologyError (ValueError)      an axis, a rank or a size that the topology does not have
    ├── ContextError (RuntimeError)     the runtime is not up yet, or says something else than torch
    ├── ArgumentError (ValueError)      a tree, a tensor or an option that cannot be exchanged
    │   └── CapturedTensorError         a function uses a tensor whose gradient would be lost
    └── ExchangeError (RuntimeError)    an exchange that was started and did not succeed
        ├── ExchangeMismatch            the ranks did not call the same exchange
        ├── PeerLost                    a neighbour is gone
        ├── ExchangeTimeout (TimeoutError)  nothing came within the deadline
        ├── DeadExchange                the backward of an exchange did not run on this rank
        ├── PendingDropped              a Pending was thrown away without wait()
        └── ExchangeClosed              close() was called before

The first three are raised before anything is posted. Texts say, in this order: the operation,
what was expected, what came, the rank and size, and what to do.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CapturedTensorError",
    "CollectivesError",
    "ContextError",
    "DeadExchange",
    "ExchangeClosed",
    "ExchangeError",
    "ExchangeMismatch",
    "ExchangeTimeout",
    "PeerLost",
    "PendingDropped",
    "TopologyError",
]


class CollectivesError(Exception):
    """Base of all errors of this library."""


class TopologyError(CollectivesError, ValueError):
    """A topology was asked for something that it does not have."""


class ContextError(CollectivesError, RuntimeError):
    """The runtime is not up, is gone, or disagrees with ``torch.distributed``."""


class ArgumentError(CollectivesError, ValueError):
    """A tree, tensor or option that cannot be exchanged."""


class CapturedTensorError(ArgumentError):
    """A function that is run again in backward uses a tensor that it was not given."""


class ExchangeError(CollectivesError, RuntimeError):
    """An exchange was started and did not succeed."""


class ExchangeMismatch(ExchangeError):  # noqa: N818 - named for what happened, as its siblings
    """The ranks are in different exchanges."""


class PeerLost(ExchangeError):  # noqa: N818
    """A neighbour closed its connection: its process ended or left the group."""


class ExchangeTimeout(ExchangeError, TimeoutError):  # noqa: N818
    """Nothing came within the deadline of the exchange."""


class DeadExchange(ExchangeError):  # noqa: N818
    """The backward of an exchange did not run on this rank, while others of its chain did."""


class PendingDropped(ExchangeError):  # noqa: N818
    """A started exchange was thrown away without ``wait()``."""


class ExchangeClosed(ExchangeError):  # noqa: N818
    """The exchange was closed."""
