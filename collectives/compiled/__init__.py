"""Exchanges inside ``torch.compile``, ``torch.export`` and ``make_fx``.

``op`` is the operator that stands in graphs, ``joining`` those of ``join``, ``script`` the text
that says all of an exchange but its tensors, ``live`` finds the Exchange by it. ``traced`` is what
tracers see instead of :mod:`collectives.move`; ``at_trace`` is what runs for real at that time,
``saving`` what it asks of the compiler. The last three import
``torch._dynamo``, and are imported only once that is at work.
"""

from .joining import join_op as join_op
from .op import exchange_op as exchange_op
