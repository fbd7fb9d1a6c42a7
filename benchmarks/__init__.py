"""How fast the exchange is, against the code that people copy: ``python -m benchmarks.exchange``.

``exchange``   what is measured, and the targets
``contest``    rounds in which contestants run one after another, in rotating order
``plain``      the contestants that are not ours
``nowhere``    a transport that moves nothing, to see the Python alone
``imports``    what ``import collectives`` costs
``ranks``      two processes over gloo, on this machine
``report``     tables and JSON

Speed is reported and never asserted: a busy machine must not fail anybody's build.
"""
