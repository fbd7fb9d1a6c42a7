"""One training job in three runtimes; ``python -m examples.demo`` runs and compares them.

``digits`` is the data, ``siglip`` the model and its ring loss, ``record`` what a run leaves behind.
``lightning_siglip``, ``fabric_siglip`` and ``torchrun_siglip`` are the same job in their runtime,
``whole_batch`` is its reference in one process; ``launch``, ``verdict`` and ``demo`` run them all
and compare.
"""
