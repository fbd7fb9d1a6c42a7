"""The ring loss against the loss of the whole batch, on simulated ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from collectives import Exchange, Ring
from collectives.testing import SimulatedAdapter, simulate
from examples.digits import CHANCE, Shard
from examples.siglip import (
    Features,
    build_model,
    pair_loss,
    retrieval,
    ring_siglip_loss,
)


def loss_and_gradients(adapter: SimulatedAdapter) -> tuple[Tensor, list[Tensor]]:
    """Return a rank's loss, and the gradient that DDP would take the mean of."""
    exchange = Exchange(Ring, adapter)
    model = build_model(torch.float64)
    batch = Shard(1, rank=exchange.rank, size=exchange.size, dtype=torch.float64)[0]
    loss = ring_siglip_loss(exchange, *model(batch))
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_mean_over_the_ranks_is_the_loss_and_gradient_of_the_whole_batch(size: int) -> None:
    reference = build_model(torch.float64)
    whole = pair_loss(*reference(Shard(1, rank=0, size=1, dtype=torch.float64)[0]))
    expected = torch.autograd.grad(whole, list(reference.parameters()))

    losses, gradients = zip(*simulate(size, loss_and_gradients), strict=True)

    torch.testing.assert_close(torch.stack(losses).mean(), whole.detach(), rtol=1e-13, atol=0)
    for parameter, gradient in zip(zip(*gradients, strict=True), expected, strict=True):
        mean = torch.stack(parameter).mean(dim=0)
        torch.testing.assert_close(mean, gradient, rtol=1e-11, atol=1e-13)


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


def test_a_model_that_has_not_learned_retrieves_no_better_than_chance() -> None:
    assert retrieval(build_model(torch.float32)) < 2 * CHANCE
