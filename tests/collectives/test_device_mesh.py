"""Mesh.from_device_mesh: which device meshes it takes, on stand-ins and on torch's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import (
    DeviceMesh,
    init_device_mesh,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from collectives.errors import TopologyError
from collectives.topology import Mesh


@dataclass
class StandIn:
    """What Mesh reads of a DeviceMesh, on a numpy array."""

    mesh: Any
    mesh_dim_names: tuple[str, ...] | None = None


@pytest.fixture
def six_ranks() -> Iterator[None]:
    """Rank 0 of six, without the other five: enough to make device meshes."""
    hook = sys.excepthook  # init_process_group wraps it once more each time
    dist.init_process_group("fake", rank=0, world_size=6, store=FakeStore())
    yield
    dist.destroy_process_group()
    sys.excepthook = hook


def test_shape_and_names_are_those_of_the_device_mesh() -> None:
    device_mesh = StandIn(np.arange(6).reshape(2, 3), ("y", "x"))
    assert Mesh.from_device_mesh(device_mesh) == Mesh((2, 3), axes=("y", "x"))
    assert Mesh.from_device_mesh(StandIn(np.arange(6))) == Mesh((6,))


def test_periodicity_is_the_callers() -> None:
    device_mesh = StandIn(np.arange(6).reshape(2, 3), ("y", "x"))
    mesh = Mesh.from_device_mesh(device_mesh, periodic={"x": True})
    assert mesh == Mesh((2, 3), axes=("y", "x"), periodic=(False, True))


@pytest.mark.parametrize("ranks", [[4, 5, 6, 7], [0, 2, 4, 6], [1, 2, 5, 11]])
def test_a_sub_mesh_counts_positions_in_its_group_not_global_ranks(ranks: list[int]) -> None:
    assert Mesh.from_device_mesh(StandIn(np.array(ranks).reshape(2, 2))) == Mesh((2, 2))


@pytest.mark.parametrize(
    "ranks",
    [
        np.arange(6).reshape(3, 2).T,
        np.array([[0, 1, 2], [5, 4, 3]]),
        np.array([1, 0]),
        np.array([0, 0]),
        np.arange(8).reshape(2, 2, 2).swapaxes(0, 2),
    ],
    ids=["transposed", "serpentine", "reversed", "twice", "outer axes swapped"],
)
def test_a_device_mesh_in_another_order_is_refused_because_neighbours_would_be_wrong(
    ranks: Any,
) -> None:
    expected = (
        r"^Mesh\.from_device_mesh: ranks must ascend in row-major order, got .* would be wrong"
    )
    with pytest.raises(TopologyError, match=expected):
        Mesh.from_device_mesh(StandIn(ranks))


def test_a_transposed_axis_of_one_rank_changes_no_neighbour_and_is_taken() -> None:
    assert Mesh.from_device_mesh(StandIn(np.arange(3).reshape(1, 3).T)) == Mesh((3, 1))


@pytest.mark.parametrize("wrong", [None, (2, 3), 6, np.arange(6)])
def test_something_else_is_refused_with_what_it_is(wrong: Any) -> None:
    expected = r"^Mesh\.from_device_mesh: device_mesh must be a torch DeviceMesh, got "
    with pytest.raises(TopologyError, match=expected):
        Mesh.from_device_mesh(wrong)


@pytest.mark.usefixtures("six_ranks")
def test_torchs_own_device_mesh_its_slices_and_its_transpose() -> None:
    device_mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("y", "x"))
    assert Mesh.from_device_mesh(device_mesh) == Mesh((2, 3), axes=("y", "x"))
    assert Mesh.from_device_mesh(device_mesh["x"]) == Mesh((3,), axes=("x",))
    assert Mesh.from_device_mesh(device_mesh["y"]) == Mesh((2,), axes=("y",))
    transposed = DeviceMesh("cpu", torch.arange(6).reshape(2, 3).T, mesh_dim_names=("x", "y"))
    with pytest.raises(TopologyError, match="got 3 before 1 in a mesh of shape"):
        Mesh.from_device_mesh(transposed)
