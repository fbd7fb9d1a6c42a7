"""torch.nn's layers on a field in shards: each rank computes its part of the unsharded output.

``extended`` gives each rank the rows that its outputs look at (by ``collectives.windows``);
``conv`` and ``pool`` are torch's layers on them.
"""

from .conv import HaloConv1d as HaloConv1d
from .conv import HaloConv2d as HaloConv2d
from .conv import HaloConv3d as HaloConv3d
from .pool import HaloPool2d as HaloPool2d
