"""What an exchange costs, against the code that people copy and against bare calls.

``exchange``   ``python -m benchmarks.exchange``: against the code that people copy
``guard``      ``python -m benchmarks.guard``: what the guard adds to bare calls
``contest``    rounds in which contestants run one after another, in rotating order
``plain``      the contestants that are not ours
``nowhere``    a transport that moves nothing, to see the Python alone
``imports``    what ``import collectives`` costs
``ranks``      processes of this machine, with a group over gloo
``payload``    what is sent, and whether it arrived
``report``     tables and JSON
``command``    the options that both have

Speed is reported and never asserted: a busy machine must not fail anybody's build.
"""
