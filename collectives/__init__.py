"""Neighbour exchange for PyTorch: typed topologies and a differentiable P2P exchange.

General layout; imports go only downwards:

``errors``              the exception tree
``topology``            Ring, Mesh, Graph, Schedule: frozen values without torch
``context``             what an adapter (package ``adapters``) finds: rank, size, device, group
``strips``, ``windows`` who needs which rows of a field in shards, as data
``plan``, ``edges``     who sends what to whom, as data; ``check_plans`` compares all ranks
``signature``           what the two ends of an exchange must agree on
``runtime``             the checks of a context against ``torch.distributed``; below it
                        ``launcher``, ``devices``, ``rendezvous``, beside it ``discovery``
``transport``           moves bytes: process group, local copies, in-process simulator
``trees``, ``dtypes``   what a tree of tensors is made of, and what torch cannot copy
``messages``, ``call``  which messages one operation takes, computed once per shape
``engine``              runs a call: ``flight`` is one under way, ``chain`` the token chain
``autograd``            the adjoint: the plan reversed; ``gradients`` are its tables
``move``, ``checks``    from trees to calls and back; what is refused on the way
``compiled``            exchanges in graphs of torch.compile, torch.export and make_fx; what ends
                        in ``in_graph``, and ``graphed``, are the operations while they are traced
``halo``                halos around a shard; ``nn`` are torch's layers on shards
``exchange``            Exchange, what users call; ``lifetime``, ``binding``, ``routes`` serve it
``neighbourhoods``      its operations over edges (``neighbours``); ``gossip`` averages (``flats``)
``rings``               its loops over the blocks of all ranks, made of what is in ``circuit``
``compat``              drop-in names for people who come from open_clip or ring-attention code
``steps``               even_steps, a loop that ends on all ranks at once
``record``              the flight record; ``cli`` is ``python -m collectives``
``doctor``              what keeps ranks from starting or exchanging, and what to do
``requirements``        what is needed of torch, said before anything else is imported
``testing``             simulate(), check_adjoint(), a pytest plugin
"""

from . import errors as errors
from . import requirements as _requirements  # noqa: F401 - raises where torch is not enough
from .context import Adapter as Adapter
from .context import Context as Context
from .exchange import Exchange as Exchange
from .pending import Pending as Pending
from .received import Received as Received
from .steps import even_steps as even_steps
from .topology import Graph as Graph
from .topology import Mesh as Mesh
from .topology import Ring as Ring
from .topology import Schedule as Schedule
