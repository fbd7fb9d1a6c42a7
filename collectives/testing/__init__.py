"""For tests: many ranks in one process, ranks in a pool of processes, the adjoint check."""
