"""The flight record: the last exchanges of a group, rank by rank, to be read when one has failed.

``values``   FlightRecord, Entry and Lane: names and shapes, never what was in a tensor
``reading``  from JSON, strictly
``taking``   from the state of a group
``dumping``  where the files go when nobody says so
``line``     the exchanges of all ranks side by side
``verdict``  who differs, who is behind, who is missing, in sentences
``table``    who is where, one line per rank
``jobs``     which records belong together
"""

from .dumping import dump as dump
from .jobs import groups as groups
from .jobs import jobs as jobs
from .reading import load as load
from .table import table as table
from .taking import take as take
from .values import Entry as Entry
from .values import FlightRecord as FlightRecord
from .values import Lane as Lane
from .verdict import verdict as verdict
from .words import moment as moment
from .words import ranks_in_words as ranks_in_words
