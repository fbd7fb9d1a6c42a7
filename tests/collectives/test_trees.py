"""Trees: what they keep, in which order their tensors travel, and how a wrong leaf is named."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import Tensor

from collectives.errors import ArgumentError
from collectives.trees import flatten, unflatten


class Side(enum.Enum):
    NEAR = 1
    FAR = 2


@dataclasses.dataclass
class Block:
    data: object
    mask: object = None


def one(value: float) -> Tensor:
    return torch.tensor([value])


TREES = [
    [one(1), {"b": {"z": None, "y": one(2)}, "a": (one(3),)}],
    OrderedDict(b=one(1), a=one(2)),
    {1: one(1), "a": one(2), Side.FAR: None, Side.NEAR: one(3), (1, 2): one(4)},
    Block({"k": [one(1), Block(None, one(2))]}),
    {},
    None,
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_tree_is_rebuilt_as_it_was(tree: object) -> None:
    tensors, structure = flatten(tree, "op")
    assert structure.count == len(tensors)
    assert repr(unflatten(structure, tensors)) == repr(tree)


def test_a_defaultdict_keeps_its_factory() -> None:
    tree = defaultdict[str, object](list, {"a": one(1)})
    tensors, structure = flatten(tree, "op")
    rebuilt = unflatten(structure, tensors)
    assert isinstance(rebuilt, defaultdict)
    assert rebuilt.default_factory is list


def test_tensors_of_a_mapping_travel_by_key_and_come_back_in_the_order_of_the_caller() -> None:
    first, second = {"a": one(1), "b": one(2)}, {"b": one(20), "a": one(10)}
    sent, one_way = flatten(first, "op")
    _, other_way = flatten(second, "op")
    assert one_way == other_way
    assert repr(unflatten(other_way, sent)) == repr({"b": one(2), "a": one(1)})


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": [one(1), {"b": 3}]}, r"int at tree\['a'\]\[1\]\['b'\]"),
        ([Block({"x": (one(1), "no")})], r"str at tree\[0\].data\['x'\]\[1\]"),
        (Block(one(1), mask=2.0), "float at tree.mask"),
        (5, "int at tree;"),
    ],
    ids=repr,
)
def test_the_place_of_a_wrong_leaf_is_named(tree: object, path: str) -> None:
    with pytest.raises(ArgumentError, match=path):
        flatten(tree, "op")
