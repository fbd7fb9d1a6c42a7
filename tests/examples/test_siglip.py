"""The ring loss against the loss of the whole batch, on ranks that are simulated in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch import Tensor

from collectives import Exchange
from examples.digits import CHANCE, Shard
from examples.siglip import (
    Features,
    build_model,
    build_optimizer,
    pair_loss,
    retrieval,
    ring_siglip_loss,
)


@dataclass
class RingOfBlocks:
    """Stands for an exchange: every rank's text is at hand, and a shift picks the next one."""

    rank: int
    blocks: list[Features]
    shifts: int = 0
    joined: bool = False

    @property
    def size(self) -> int:
        return len(self.blocks)

    def shift(self, tree: Features) -> Features:
        assert torch.equal(tree.vectors, self.blocks[self.rank - self.shifts].vectors)
        self.shifts += 1
        return self.blocks[self.rank - self.shifts]

    def join(self, loss: Tensor) -> Tensor:
        self.joined = True
        return loss


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_mean_of_the_ring_losses_is_the_loss_of_the_whole_batch(size: int) -> None:
    dtype = torch.float64
    reference, model = build_model(dtype), build_model(dtype)
    whole = pair_loss(*reference(Shard(1, rank=0, size=1, dtype=dtype)[0]))
    whole.backward()

    rows = [model(Shard(1, rank=rank, size=size, dtype=dtype)[0]) for rank in range(size)]
    rings = [RingOfBlocks(rank, [text for _, text, _, _ in rows]) for rank in range(size)]
    losses = [
        ring_siglip_loss(cast("Exchange", ring), *row)
        for ring, row in zip(rings, rows, strict=True)
    ]
    mean = torch.stack(losses).mean()
    mean.backward()

    torch.testing.assert_close(mean, whole, rtol=1e-13, atol=0)
    for expected, got in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-11, atol=1e-13)
    assert all(ring.shifts == size - 1 and ring.joined for ring in rings)


def test_every_pair_of_one_digit_is_a_match_and_every_other_is_not() -> None:
    vectors, zero = torch.eye(2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    image = Features(vectors, torch.tensor([3, 3]))
    text = Features(vectors, torch.tensor([3, 8]))
    # Cosines are 1 0 / 0 1; both pictures match the first text only.
    expected = -torch.nn.functional.logsigmoid(torch.tensor([1.0, -0.0, 0.0, -1.0]).double()).sum()
    torch.testing.assert_close(pair_loss(image, text, zero, zero), expected / 2)


def test_every_process_builds_the_same_model_and_leaves_the_seed_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = build_model(torch.float64).state_dict()
    assert torch.equal(torch.rand(3), expected)
    second = build_model(torch.float64).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_retrieval_is_near_chance_before_training_and_far_above_after() -> None:
    dtype = torch.float32
    model = build_model(dtype)
    optimizer = build_optimizer(model)
    assert retrieval(model) < 2.5 * CHANCE
    shard = Shard(50, rank=0, size=1, dtype=dtype)
    for step in range(len(shard)):
        optimizer.zero_grad()
        pair_loss(*model(shard[step])).backward()
        optimizer.step()
    assert retrieval(model) > 0.7
