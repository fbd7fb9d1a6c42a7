"""Drop-in names for code that comes from elsewhere: the same signatures, right at every size.

``neighbours``  the functions that people copy from open_clip's SigLIP loss
``ring_comm``   the class of ring-attention code (ring-flash-attention, long-context-attention)
``hidden``      the engine behind them, one for each group

Ranks are **global** ranks, as there; ``group`` defaults to the default process group. Without a
process group only a process that is alone may exchange, with itself (rank 0). All calls on one
group share one hidden engine, which lives as long as the group.
"""

from .neighbours import join as join
from .neighbours import neighbour_exchange as neighbour_exchange
from .neighbours import neighbour_exchange_bidir as neighbour_exchange_bidir
from .neighbours import neighbour_exchange_bidir_with_grad as neighbour_exchange_bidir_with_grad
from .neighbours import neighbour_exchange_with_grad as neighbour_exchange_with_grad
from .ring_comm import RingComm as RingComm
