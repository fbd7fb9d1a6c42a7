"""Who is whose neighbour: frozen values made of integers, which know nothing of torch.

``base``         Topology, what all have in common, and Shift, the two ends of a shift
``cartesian``    Cartesian, the neighbour arithmetic that Ring and Mesh share
``ring``         Ring, one axis
``mesh``         Mesh, several axes, numbered in row-major order
``balanced``     the shape of Mesh.balanced
``device_mesh``  torch's DeviceMesh as Mesh.from_device_mesh reads it
``graph``        Graph, any directed edges; ``families`` and ``weights`` are its edges and weights
``schedule``     Schedule, a graph for each step
``mixing``       mixing matrices; ``networks`` graphs of networkx
``arguments``    the checks of what callers pass

A rank is the position *in the topology*, never a global rank. **Right is rank + 1**: along any
axis a positive offset goes to the higher coordinate, and what is shifted by ``offset`` arrives
from rank - ``offset``.

    >>> Ring(4).right(3), Ring(4).left(0), Ring(4, periodic=False).right(3)
    (0, 3, None)
    >>> Mesh((2, 3), axes=("y", "x")).shift(4, "x", offset=1)
    Shift(source=3, destination=5)
"""

from .base import Shift as Shift
from .base import Topology as Topology
from .cartesian import Cartesian as Cartesian
from .graph import Graph as Graph
from .mesh import Mesh as Mesh
from .ring import Ring as Ring
from .schedule import Schedule as Schedule
