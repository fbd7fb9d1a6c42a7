"""What helps to test code that exchanges tensors.

``simulate`` runs many ranks in this process. Nothing here imports a test framework.
"""

from __future__ import annotations

from .simulate import SimulatedAdapter as SimulatedAdapter
from .simulate import Simulation as Simulation
from .simulate import Traffic as Traffic
from .simulate import simulate as simulate

__all__ = ["SimulatedAdapter", "Simulation", "Traffic", "simulate"]
