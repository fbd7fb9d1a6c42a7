"""What helps to test code that exchanges tensors.

``simulate`` runs many ranks in this process, ``check_adjoint`` tests a backward. Nothing here
imports a test framework; the pytest plugin is ``collectives.testing.plugin``.
"""

from __future__ import annotations

from .adjoint import check_adjoint as check_adjoint
from .simulate import SimulatedAdapter as SimulatedAdapter
from .simulate import Simulation as Simulation
from .simulate import Traffic as Traffic
from .simulate import simulate as simulate

__all__ = ["SimulatedAdapter", "Simulation", "Traffic", "check_adjoint", "simulate"]
