"""The examples in docstrings run, with the names that a reader would have imported."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

import collectives
from collectives import testing

# Those of the topologies run in tests/collectives/test_topology.py.
MODULES = (
    "collectives.collective",
    "collectives.circuit.track",
    "collectives.compat.ring_comm",
    "collectives.exchange",
    "collectives.gossip",
    "collectives.halo.family",
    "collectives.neighbourhoods",
    "collectives.nn.conv",
    "collectives.nn.pool",
    "collectives.record.values",
    "collectives.record.words",
    "collectives.rings",
    "collectives.steps",
    "collectives.strips",
    "collectives.testing.adjoint",
    "collectives.testing.simulate",
    "collectives.windows",
)
OURS = ("Exchange", "Graph", "Mesh", "Ring", "Schedule")
NAMES = {
    "torch": torch,
    **{name: getattr(collectives, name) for name in OURS},
    **{name: getattr(testing, name) for name in testing.__all__},
}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_right(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), extraglobs=NAMES)
    assert result.attempted > 0
    assert result.failed == 0
