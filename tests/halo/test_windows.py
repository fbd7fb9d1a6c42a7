"""Which outputs a rank computes: together those of torch's layer, from rows that it can see."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.strips import offsets
from collectives.windows import Window

LINES = st.lists(st.integers(0, 6), min_size=1, max_size=8).map(tuple)
WINDOWS = st.builds(
    Window,
    kernel=st.integers(1, 7),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    before=st.integers(0, 6),
    after=st.integers(0, 6),
    ceil=st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(sizes=LINES, window=WINDOWS)
def test_every_output_belongs_to_one_rank_in_order(sizes: tuple[int, ...], window: Window) -> None:
    owned = window.owned(sizes)
    together = [j for mine in owned for j in mine]
    assert together == list(range(window.outputs(sum(sizes))))


@settings(max_examples=200, deadline=None)
@given(sizes=LINES, window=WINDOWS)
def test_the_rows_needed_are_those_that_the_outputs_look_at(
    sizes: tuple[int, ...], window: Window
) -> None:
    for mine, rows, offset, size in zip(
        window.owned(sizes), window.needs(sizes), offsets(sizes), sizes, strict=True
    ):
        seen = [
            j * window.stride - window.before + i * window.dilation
            for j in mine
            for i in range(window.kernel)
        ]
        expected = (min(seen), max(seen) + 1) if seen else (offset, offset + size)
        assert tuple(rows) == expected


@settings(max_examples=100, deadline=None)
@given(sizes=LINES, half=st.integers(0, 3))
def test_a_layer_that_keeps_the_field_keeps_each_shard(sizes: tuple[int, ...], half: int) -> None:
    window = Window(2 * half + 1, before=half, after=half)
    assert tuple(map(len, window.owned(sizes))) == sizes


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(1, 20),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    share=st.floats(0, 1),
    ceil=st.booleans(),
    padding_counts=st.booleans(),
)
def test_outputs_and_counts_are_those_of_torchs_average(
    size: int, kernel: int, stride: int, share: float, *, ceil: bool, padding_counts: bool
) -> None:
    padding = int(share * (kernel // 2))
    window = Window(kernel, stride, 1, padding, padding, ceil)
    if not window.outputs(size):
        return
    pool = torch.nn.AvgPool1d(kernel, stride, padding, ceil, padding_counts)
    ones = torch.ones(1, 1, size, dtype=torch.float64)
    sums = torch.nn.functional.avg_pool2d(
        ones[None], (1, kernel), (1, stride), (0, padding), ceil, divisor_override=1
    )
    expected = sums.flatten() / pool(ones).flatten()
    counts = window.counts(range(window.outputs(size)), size, padding=padding_counts)
    assert torch.allclose(torch.tensor(counts, dtype=torch.float64), expected)
