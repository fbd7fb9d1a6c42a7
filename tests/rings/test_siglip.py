"""The SigLIP loss as a fold: equal to the whole batch in one process, and constant in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.ring_memory import saved_bytes
from collectives import Adapter, Exchange, Ring
from examples.siglip import Features, pair_loss
from tests.support.worlds import SIZES, World

ROWS, WIDTH = 4, 6  # rows of each rank


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Linear(5, WIDTH)
        self.text = nn.Linear(5, WIDTH)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.bias = nn.Parameter(torch.tensor(-3.0))
        self.double()

    def forward(self, rows: slice) -> tuple[Features, Features]:
        generator = torch.Generator().manual_seed(1)
        total = ROWS * max(SIZES)
        pictures, captions = torch.randn(2, total, 5, dtype=torch.float64, generator=generator)
        digits = torch.arange(total) % 3
        image = nn.functional.normalize(self.image(pictures[rows]), dim=-1)
        text = nn.functional.normalize(self.text(captions[rows]), dim=-1)
        return Features(image, digits[rows]), Features(text, digits[rows])


def gradients(towers: nn.Module) -> list[Tensor]:
    return [x.grad for x in towers.parameters() if x.grad is not None]


def on_ranks(adapter: Adapter) -> tuple[Tensor, list[Tensor]]:
    exchange = Exchange(Ring, adapter)
    towers = Towers()
    image, text = towers(slice(exchange.rank * ROWS, (exchange.rank + 1) * ROWS))
    loss = exchange.ring_fold(
        lambda _, text, image, scale, bias: pair_loss(image, text, scale, bias),
        text,
        image,
        towers.scale,
        towers.bias,
    )
    loss.backward()
    return loss.detach(), gradients(towers)


@pytest.mark.parametrize("size", SIZES)
def test_the_mean_over_ranks_is_the_loss_of_the_whole_batch(world: World, size: int) -> None:
    towers = Towers()
    image, text = towers(slice(0, size * ROWS))
    whole = pair_loss(image, text, towers.scale, towers.bias)
    whole.backward()
    losses, grads = zip(*world(on_ranks, size), strict=True)
    torch.testing.assert_close(torch.stack(losses).mean(), whole.detach(), rtol=1e-10, atol=1e-10)
    for parts, expected in zip(zip(*grads, strict=True), gradients(towers), strict=True):
        mean = torch.stack(parts).mean(0)  # what DDP makes of them
        torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-10)


def test_what_autograd_keeps_does_not_grow_with_the_ranks() -> None:
    folds = [saved_bytes("ring_fold", size) for size in (1, 2, 4, 8)]
    loops = [saved_bytes("loop of shifts", size) for size in (1, 2, 4, 8)]
    passes = [saved_bytes("ring_pass", size) for size in (1, 2, 4, 8)]
    assert len(set(folds)) == 1
    assert loops == sorted(set(loops))
    assert passes == sorted(set(passes))
    assert folds[0] < loops[0]
