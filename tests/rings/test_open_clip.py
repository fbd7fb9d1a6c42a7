"""The SigLIP loss that open_clip computes, to ten digits, at every size.

The numbers are those of ``open_clip.loss.SigLipLoss`` (open_clip_torch 3.3.0, its default two-way
ring) on gloo processes, in float64, for the features below: no code of it is needed here.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from collectives import Adapter, Exchange, Ring, compat
from tests.support.worlds import World


class Numbers(NamedTuple):
    """A rank's loss, the norms of its features' gradients, and the gradients of two scalars."""

    loss: float
    image: float
    text: float
    scale: float
    bias: float


OPEN_CLIP = {
    1: [Numbers(6.35601464391, 4.4513161218, 4.45514928546, -0.218366121867, -0.805641504253)],
    2: [
        Numbers(6.35626092333, 4.45126475347, 4.45517695756, -0.218354803268, -0.805395234873),
        Numbers(16.4703657211, 5.02362933204, 5.05470829674, 0.678152476064, -0.956433405276),
    ],
    3: [
        Numbers(6.3571396157, 4.4507896224, 4.45519528427, -0.21817582505, -0.804516747433),
        Numbers(16.4728118465, 5.02623694754, 5.07442483686, 0.679013355743, -0.953990003477),
        Numbers(19.8744997028, 6.99708932757, 6.97517559005, 1.3150399861, -0.594789301026),
    ],
    5: [
        Numbers(6.59230998698, 4.36942276039, 4.42604878759, -0.0411678634991, -0.602209567018),
        Numbers(16.7299933546, 5.76149655783, 5.62015933792, 0.873045829405, -0.723351900975),
        Numbers(19.959288404, 7.19582675593, 6.97890980466, 1.3796040054, -0.522370410886),
        Numbers(11.8199083822, 5.49981014038, 5.74299131354, 0.453937085331, -0.626661825632),
        Numbers(2.23315314085, 4.17766048442, 3.93394511386, -0.594551807061, -0.73437099815),
    ],
}  # fmt: skip


def features(rank: int) -> tuple[Tensor, Tensor]:
    places = torch.arange(2 * 4 * 6, dtype=torch.float64).reshape(2, 4, 6)
    image, text = nn.functional.normalize(torch.sin(places * (rank + 1) + rank), dim=-1).unbind()
    return image.clone().requires_grad_(), text.clone().requires_grad_()


def pairs(text: Tensor, image: Tensor, scale: Tensor, bias: Tensor, *, own: bool) -> Tensor:
    signs = -torch.ones(4, 4, dtype=torch.float64)
    if own:
        signs += 2 * torch.eye(4)
    return -nn.functional.logsigmoid(signs * (scale * image @ text.T + bias)).sum() / 4


def loss_of(exchange: Exchange, way: str, *tensors: Tensor) -> Tensor:
    image, text, scale, bias = tensors
    rank, size = exchange.rank, exchange.size
    if way.startswith("ring_fold"):

        def term(source: int, text: Tensor, *others: Tensor) -> Tensor:
            return pairs(text, *others, own=source == rank)

        return exchange.ring_fold(term, text, image, scale, bias, keep=int(way[-1]))
    loss = pairs(text, image, scale, bias, own=True)
    left, right = (rank - 1) % size, (rank + 1) % size
    to_left = to_right = text
    for _ in range((size - 1) // 2):  # both ways at once, as open_clip goes
        to_left, to_right = compat.neighbour_exchange_bidir_with_grad(
            left, right, to_left, to_right
        )
        for visiting in (to_left, to_right):
            loss = loss + pairs(visiting, image, scale, bias, own=False)
    if size % 2 == 0:
        visiting = compat.neighbour_exchange_with_grad(left, right, to_right)
        loss = loss + pairs(visiting, image, scale, bias, own=False)
    return exchange.join(loss)


def numbers(adapter: Adapter, way: str) -> Numbers:
    exchange = Exchange(Ring, adapter)
    scale, bias = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (10.0, -10.0))
    image, text = features(exchange.rank)
    loss = loss_of(exchange, way, image, text, scale, bias)
    loss.backward()
    grads = [x.grad for x in (image, text, scale, bias) if x.grad is not None]
    norms = [x.norm().item() for x in grads[:2]]
    return Numbers(loss.item(), *norms, *(x.item() for x in grads[2:]))


@pytest.mark.parametrize("size", OPEN_CLIP)
@pytest.mark.parametrize("way", ["ring_fold, keep=0", "ring_fold, keep=2"])
def test_the_fold_has_the_numbers_of_open_clip(world: World, size: int, way: str) -> None:
    assert world(numbers, size, way) == [pytest.approx(n, rel=1e-10) for n in OPEN_CLIP[size]]


@pytest.mark.parametrize("size", OPEN_CLIP)
def test_the_compat_functions_have_the_numbers_of_open_clip(rank_pool: object, size: int) -> None:
    results = World("gloo", rank_pool)(numbers, size, "compat")  # type: ignore[arg-type]
    assert results == [pytest.approx(n, rel=1e-10) for n in OPEN_CLIP[size]]
