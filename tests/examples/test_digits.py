from __future__ import annotations

import pytest
import torch

from examples.digits import BATCH, CHANCE, VOCABULARY, Batch, Shard, held_out, tokenize

STEPS = 30  # more than one epoch of 25


def shards(size: int, dtype: torch.dtype = torch.float64) -> list[Shard]:
    return [Shard(STEPS, rank=rank, size=size, dtype=dtype) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_rows_of_all_ranks_in_order_are_the_batch_of_one_process(size: int) -> None:
    (whole,) = shards(1)
    parts = shards(size)
    for step in (0, 24, 25, STEPS - 1):
        together = Batch(*map(torch.cat, zip(*(part[step] for part in parts), strict=True)))
        assert all(map(torch.equal, together, whole[step]))


def test_a_size_that_does_not_divide_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a size that divides 60, got 7 \(rank 6 of 7\)"):
        Shard(STEPS, rank=6, size=7, dtype=torch.float32)


def test_an_epoch_shows_every_picture_once_and_none_that_is_held_out() -> None:
    (whole,) = shards(1)
    shown = torch.cat([whole[step].pixels for step in range(25)]).flatten(1)
    hidden = held_out(torch.float64)[0].flatten(1)
    assert shown.shape == (1500, 64)
    assert len(shown.unique(dim=0)) == 1500
    assert not (shown[:, None] == hidden[None]).all(dim=-1).any()


def test_held_out_captions_are_made_of_known_words_in_new_orders() -> None:
    (whole,) = shards(1)
    _, _, tokens, digit = held_out(torch.float64)
    trained = {tuple(row) for step in range(STEPS) for row in whole[step].tokens.tolist()}
    assert not trained & {tuple(row) for row in tokens.tolist()}
    assert set(tokens.flatten().tolist()) <= set().union(*trained)
    assert torch.equal(digit.bincount() / len(digit), torch.full((10,), CHANCE))


def test_the_words_of_a_caption_name_the_digit_of_its_row() -> None:
    word = {token: word for word, token in VOCABULARY.items()}
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    batch = shards(1)[0][0]
    assert len(batch.digit) == BATCH
    for tokens, digit in zip(batch.tokens.tolist(), batch.digit.tolist(), strict=True):
        caption = {word[token] for token in tokens if token}
        assert len(caption & {names[digit], str(digit)}) == 1


def test_tokens_are_filled_up_with_zeros() -> None:
    tokens = tokenize("the digit 3")
    assert tokens[:3] == [VOCABULARY["the"], VOCABULARY["digit"], VOCABULARY["3"]]
    assert not any(tokens[3:])


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(KeyError, match="eleven"):
        tokenize("the digit eleven")
