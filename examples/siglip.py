"""A small image-text model and its sigmoid (SigLIP) loss, whose texts travel round the ring.

Every rank encodes its own rows. Then each rank's text features visit all the ranks, one neighbour
at a time, and meet the pictures there: every pair of the global batch is scored, and no rank ever
holds more than two blocks of texts besides its own rows, in backward neither.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from collectives import Exchange

from .digits import CHANCE, VOCABULARY, Batch, held_out

__all__ = [
    "Features",
    "SigLIP",
    "build_model",
    "build_optimizer",
    "pair_loss",
    "retrieval",
    "ring_siglip_loss",
]


class Features(NamedTuple):
    """What an encoder made of its rows: the tree that travels.

    Captions repeat within a batch, so "the text of the same row" would call a second picture of a
    three and the words "a handwritten three" a mismatch. The digits travel with the features, and
    each pair that shows the same digit is a match.

    Args:
        vectors: ``(rows, width)``, of length 1.
        digit: ``(rows,)``, int64.
    """

    vectors: Tensor
    digit: Tensor


def pair_loss(image: Features, text: Features, scale: Tensor, bias: Tensor) -> Tensor:
    """Return the sigmoid loss of all pairs of a picture and a text, divided by the pictures."""
    logits = scale.exp() * image.vectors @ text.vectors.T + bias
    match = image.digit[:, None] == text.digit[None, :]
    return -functional.logsigmoid(torch.where(match, logits, -logits)).sum() / len(image.digit)


def ring_siglip_loss(
    exchange: Exchange, image: Features, text: Features, scale: Tensor, bias: Tensor
) -> Tensor:
    """Return this rank's rows of the loss over the pairs of all ranks.

    The mean over the ranks is the loss of the global batch; DDP takes the same mean of the
    gradients, so that training equals that of one process without any factor.

    Args:
        exchange: Over a ring of the ranks that share the batch.
        image: Of this rank's rows.
        text: Of this rank's rows; as many on every rank.
        scale: Logarithm of the factor on the cosines.
        bias: Added to the scaled cosines.
    """

    def visit(_: int, text: Features, image: Features, scale: Tensor, bias: Tensor) -> Tensor:
        return pair_loss(image, text, scale, bias)

    return exchange.ring_fold(visit, text, image, scale, bias)


class _ImageEncoder(nn.Sequential):
    """``(rows, 1, 8, 8)`` to ``(rows, width)``."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, width),
        )


class _TextEncoder(nn.Module):
    """``(rows, words)`` to ``(rows, width)``: the mean of the words, then a small network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(len(VOCABULARY) + 1, width, mode="mean", padding_idx=0)
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.head(self.words(tokens))
        return features


class SigLIP(nn.Module):
    """Two encoders into one space, and the scale and bias of their cosines."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.image = _ImageEncoder(width)
        self.text = _TextEncoder(width)
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))
        # Starts at the share of matches, as SigLIP does for its much larger batches.
        self.bias = nn.Parameter(torch.tensor(math.log(CHANCE / (1 - CHANCE))))

    def encode_image(self, pixels: Tensor) -> Tensor:
        """``(rows, 1, 8, 8)`` to ``(rows, width)`` of length 1."""
        return functional.normalize(self.image(pixels), dim=-1)

    def encode_text(self, tokens: Tensor) -> Tensor:
        """``(rows, words)`` to ``(rows, width)`` of length 1."""
        return functional.normalize(self.text(tokens), dim=-1)

    def forward(self, batch: Batch) -> tuple[Features, Features, Tensor, Tensor]:
        """Return what ``ring_siglip_loss`` takes after the exchange."""
        image = Features(self.encode_image(batch.pixels), batch.digit)
        text = Features(self.encode_text(batch.tokens), batch.digit)
        return image, text, self.scale, self.bias


def build_model(dtype: torch.dtype) -> SigLIP:
    """Return the model with the same first parameters in every process."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return SigLIP().to(dtype)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of every run."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@torch.no_grad()
def retrieval(model: SigLIP) -> float:
    """Return how often the best of all held-out captions fits a held-out picture, from 0 to 1."""
    pixels, shown, tokens, named = held_out(model.scale.dtype)
    device = model.scale.device
    cosines = model.encode_image(pixels.to(device)) @ model.encode_text(tokens.to(device)).T
    best = cosines.argmax(dim=1).cpu()
    return (named[best] == shown).double().mean().item()
