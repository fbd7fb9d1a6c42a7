"""Blocks that go round: along one axis, every rank's tree visits every rank.

``track``       whose block is where after how many hops: integers only
``passing``     one block after the other, the next one on its way meanwhile
``body``        the user's function, run again in backward as it ran in forward
``captured``    tensors that the function uses and autograd would lose
``folding``     the sum of terms that are computed again: ``ring_fold``
``scanning``    a carry that goes from block to block: ``ring_scan``
"""

from .folding import fold as fold
from .passing import Options as Options
from .passing import circulate as circulate
from .scanning import scan as scan
from .track import Track as Track
from .track import find_track as find_track
