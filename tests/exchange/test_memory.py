"""What an exchange leaves behind: nothing."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from collectives import Adapter, Exchange, Received, Ring
from tests.support.worlds import SIZES, World


def results_outlive_their_use(adapter: Adapter, started: bool, given: bool) -> list[bool]:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    out = Received(torch.empty(3), torch.empty(3)) if given else None
    if started:
        received = exchange.start_exchange(to_left=x, to_right=x, out=out).wait()
    else:
        received = exchange.exchange(to_left=x, to_right=x, out=out)
    alive = [weakref.ref(tensor) for tensor in received]
    del received
    exchange.mark_step()
    gc.collect()
    return [reference() is not None for reference in alive]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_results_under_grad_go_although_no_backward_came(
    world: World, size: int, started: bool, given: bool
) -> None:
    """An evaluation that forgot no_grad: a result holds its node, which must not hold it back."""
    assert world(results_outlive_their_use, size, started, given) == [[False, False]] * size


def versions(adapter: Adapter, inference: bool) -> list[int]:
    exchange = Exchange(Ring, adapter)
    single, packed = torch.zeros(4), [torch.zeros(2), torch.zeros(2)]
    buffers = [single, *packed]
    before = [buffer._version for buffer in buffers]
    with torch.inference_mode(inference):
        exchange.shift([torch.ones(4, dtype=torch.float64)], out=[torch.zeros(4).double()])
        exchange.shift(torch.ones(4), out=single)
        exchange.shift([torch.ones(2), torch.ones(2)], out=packed)
    return [buffer._version - old for buffer, old in zip(buffers, before, strict=True)]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_every_buffer_that_is_written_counts_as_modified(
    world: World, size: int, inference: bool
) -> None:
    """Also what the transport writes itself, also for those who saved it before inference mode."""
    for counted in world(versions, size, inference):
        assert all(counts >= 1 for counts in counted)


def into_inference_tensors(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    with torch.inference_mode():
        out = torch.zeros(2)
        return exchange.shift(torch.ones(2), out=out).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_made_in_inference_mode_can_be_written(world: World, size: int) -> None:
    assert world(into_inference_tensors, size) == [[1.0, 1.0]] * size
