"""Halos: each rank's shard with the rows of its neighbours around it.

``arguments`` makes a request of what callers pass, ``survey`` works out who needs what of whom on
the whole mesh (by ``strips``), ``layout`` what that is on this rank, ``crossing`` sends the slabs
dim after dim, ``pieces`` cuts them out of the shard and puts them around it, ``boundary`` makes
what lies beyond the field's ends.
"""

from .family import Halos as Halos
