"""Mixing matrices: what one step of averaging does, as numbers. Only here is numpy needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import TopologyError
from .families import Edges
from .weights import EXACT, Weights

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = ["gap_of", "is_doubly_stochastic", "matrix_of", "product_of"]


def matrix_of(size: int, edges: Edges, weights: Weights, own: Weights) -> Matrix:
    """Return W with what rank i takes from rank j in row i, column j; several edges add up."""
    import numpy as np

    matrix = np.zeros((size, size))
    if edges:
        sources, destinations = np.array(edges).T
        np.add.at(matrix, (destinations, sources), np.array(weights))
    matrix[np.diag_indices(size)] += own
    return matrix


def product_of(matrices: list[Matrix]) -> Matrix:
    """Return what steps do together, the first one first."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = matrix @ product
    return product


def gap_of(operation: str, matrix: Matrix) -> float:
    """Return one minus the second largest modulus among the eigenvalues.

    Raises:
        TopologyError: Neither the rows nor the columns sum to one: the largest eigenvalue is not
            one, and nothing converges to an average.
    """
    import numpy as np

    if not any(np.abs(matrix.sum(axis=axis) - 1).max() <= EXACT for axis in (0, 1)):
        raise TopologyError(
            f"{operation}: the weights of each rank, its own included, must sum to 1; leave"
            " self_weights= out, and the rank keeps what its edges leave"
        )
    if len(matrix) == 1:
        return 1.0
    symmetric = bool((matrix == matrix.T).all())
    values = np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix)
    # Rounded, so that 0 is 0 where ranks never hear of each other; adding 0.0 makes -0.0 plain.
    return round(1 - float(np.sort(np.abs(values))[-2]), 12) + 0.0


def is_doubly_stochastic(matrix: Matrix) -> bool:
    """Whether all rows and columns sum to one, and nothing is negative."""
    import numpy as np

    sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
    return bool(np.abs(sums - 1).max() <= EXACT and matrix.min() >= 0)
