"""Handwritten digits with captions: the pictures that come with scikit-learn, and words for them.

Every process builds the same global batches from the same seed and keeps its own contiguous rows,
so that the ranks of any world together see exactly the batch that one process would see.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["BATCH", "CHANCE", "SIZES", "VOCABULARY", "Batch", "Shard", "held_out", "tokenize"]

BATCH = 60  # per step, over all ranks
SIZES = tuple(size for size in range(1, BATCH + 1) if BATCH % size == 0)  # of worlds
CHANCE = 0.1  # a guess among ten digits

_NAMES = (
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
)
_TEMPLATES = (
    "a handwritten {}",
    "the digit {}",
    "a drawing of the number {}",
    "{} written in ink on paper",
    "someone wrote {} by hand",
)
# Known words in an order that training never shows.
_HELD_OUT_TEMPLATES = ("the number {} on paper", "a digit {} written by hand")
_HELD_OUT_PICTURES = 297  # of 1797

_WORDS = sorted({word for text in _TEMPLATES for word in text.split()} - {"{}"})
VOCABULARY = {
    word: token
    for token, word in enumerate([*_WORDS, *(name for names in _NAMES for name in names)], start=1)
}
_LENGTH = max(len(text.split()) for text in (*_TEMPLATES, *_HELD_OUT_TEMPLATES))


class Batch(NamedTuple):
    """Pictures and captions, row by row.

    Args:
        pixels: ``(rows, 1, 8, 8)``, from -1 to 1.
        tokens: ``(rows, words)``, int64, 0 where a caption has ended.
        digit: ``(rows,)``, int64: what both of a row show.
    """

    pixels: Tensor
    tokens: Tensor
    digit: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on ``device``."""
        return Batch(*(tensor.to(device) for tensor in self))


def tokenize(caption: str) -> list[int]:
    """Return one token per word of ``caption``, filled up with 0 to a fixed length.

    Raises:
        KeyError: A word that is not in ``VOCABULARY``.
    """
    tokens = [VOCABULARY[word] for word in caption.split()]
    return tokens + [0] * (_LENGTH - len(tokens))


@cache
def _captions(templates: tuple[str, ...]) -> Tensor:
    """Tokens as ``(digits, captions of a digit, words)``."""
    return torch.tensor(
        [[tokenize(text.format(name)) for text in templates for name in names] for names in _NAMES]
    )


@cache
def _pictures() -> tuple[Tensor, Tensor]:
    """Pixels and digits in an order that does not follow the writers."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    pixels = torch.from_numpy(bunch.images)[order, None] / 8 - 1
    return pixels, torch.from_numpy(bunch.target).long()[order]


class Shard(Dataset[Batch]):
    """One rank's rows of every global batch; item ``i`` is the batch of step ``i``.

    Use it with ``DataLoader(shard, batch_size=None)``, and let no runtime put a sampler of its
    own on it: it is sharded already.

    Args:
        steps: Number of batches.
        rank: Which rows: ``BATCH / size`` of them, starting at ``rank * BATCH / size``.
        size: Number of ranks.
        dtype: Of the pixels.

    Raises:
        ValueError: ``BATCH`` rows do not split evenly.
    """

    def __init__(self, steps: int, *, rank: int, size: int, dtype: torch.dtype) -> None:
        if size not in SIZES:
            raise ValueError(
                f"Shard: the batch does not split evenly: expected a size that divides {BATCH},"
                f" got {size} (rank {rank} of {size})"
            )
        pixels, digit = _pictures()
        self._pixels, self._digit = (
            pixels[_HELD_OUT_PICTURES:].to(dtype),
            digit[_HELD_OUT_PICTURES:],
        )
        self._steps = steps
        rows = BATCH // size
        self._rows = slice(rank * rows, (rank + 1) * rows)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Batch:
        captions = _captions(_TEMPLATES)
        epoch, position = divmod(step, len(self._digit) // BATCH)
        shuffled = torch.randperm(len(self._digit), generator=torch.Generator().manual_seed(epoch))
        chosen = shuffled[position * BATCH : (position + 1) * BATCH]
        words = torch.Generator().manual_seed(step)
        caption = torch.randint(captions.shape[1], (BATCH,), generator=words)[self._rows]
        picture = chosen[self._rows]
        digit = self._digit[picture]
        return Batch(self._pixels[picture], captions[digit, caption], digit)


def held_out(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return pictures that training never shows, and captions in a wording that it never shows.

    Returns:
        ``pixels, digit`` of the pictures and ``tokens, digit`` of the captions: each picture has
        many captions that fit, one tenth of all.
    """
    pixels, digit = _pictures()
    captions = _captions(_HELD_OUT_TEMPLATES)
    caption_digit = torch.arange(len(_NAMES)).repeat_interleave(captions.shape[1])
    return (
        pixels[:_HELD_OUT_PICTURES].to(dtype),
        digit[:_HELD_OUT_PICTURES],
        captions.flatten(0, 1),
        caption_digit,
    )
