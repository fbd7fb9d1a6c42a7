"""C: a ring loss: the scale of its gradient, the memory of its graph. See README.md."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from tests.support.worlds import World

ROWS = 3  # of each rank


class Towers(nn.Module):
    """Two linear towers, the same on every rank."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image, self.text = (nn.Linear(5, 4, bias=False).double() for _ in range(2))
        for tower in (self.image, self.text):
            tower.weight.data = torch.randn(4, 5, generator=generator, dtype=torch.float64)

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        return functional.normalize(self.image(images)), functional.normalize(self.text(texts))


def batch(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images, texts = torch.randn(2, size * ROWS, 5, generator=generator, dtype=torch.float64)
    return images, texts


def block_loss(images: Tensor, texts: Tensor, *, same: bool) -> Tensor:
    """Sigmoid loss of one block of pairs, summed over the pairs and averaged over the images."""
    logits = images @ texts.T
    labels = (
        2 * torch.eye(len(images), dtype=logits.dtype) - 1 if same else -torch.ones_like(logits)
    )
    return -functional.logsigmoid(labels * logits).sum() / len(images)


def ring_loss(exchange: Exchange, images: Tensor, texts: Tensor) -> Tensor:
    loss = block_loss(images, texts, same=True)
    passing = texts
    for _ in range(exchange.size - 1):
        passing = exchange.shift(passing)
        loss = loss + block_loss(images, passing, same=False)
    return exchange.join(loss)


def single_process(size: int) -> list[Tensor]:
    towers = Towers()
    images, texts = towers(*batch(size))
    block_loss(images, texts, same=True).backward()
    return gradients(towers)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def largest_difference(some: list[Tensor], others: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(some, others, strict=True))


@pytest.mark.ranks(1, 2, 3, 5)
def test_the_ddp_gradient_of_a_ring_loss_is_that_of_one_process_without_a_factor(
    rank: int, world_size: int
) -> None:
    """C55: gradient scale under DDP. lightly-ai/lightly#1977, JohnGiorgi/DeCLUTR#212,
    ShiqiYu/OpenGait#36, texttron/tevatron#143, ultralytics/ultralytics#18616,
    facebookresearch/fairseq#494, Dao-AILab/flash-attention#1244."""
    exchange = Exchange(Ring, RawDDPAdapter())
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    images, texts = batch(world_size)
    model = DistributedDataParallel(Towers())
    ring_loss(exchange, *model(images[mine], texts[mine])).backward()
    assert largest_difference(gradients(model), single_process(world_size)) < 1e-14


@pytest.mark.ranks(3)
def test_without_gradients_through_the_exchange_no_factor_would_repair_it(rank: int) -> None:
    """C55, control: what the reports above try to repair by a factor."""
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    images, texts = batch(3)
    model = DistributedDataParallel(Towers())
    own_images, own_texts = model(images[mine], texts[mine])
    everybody = [torch.zeros_like(own_texts) for _ in range(3)]
    dist.all_gather(everybody, own_texts.detach())
    others = [texts for r, texts in enumerate(everybody) if r != rank]
    blocks = [block_loss(own_images, theirs, same=False) for theirs in others]
    (block_loss(own_images, own_texts, same=True) + torch.stack(blocks).sum()).backward()
    found, expected = gradients(model)[1], single_process(3)[1]
    factor = (found * expected).sum() / (found * found).sum()  # the best there is
    assert (factor * found - expected).norm() > 0.1 * expected.norm()


def saved_bytes(adapter: Adapter) -> list[int]:
    """Return the bytes that autograd keeps after each step of a ring loss."""
    exchange = Exchange(Ring, adapter)
    images, texts = (torch.ones(64, 32, requires_grad=True) for _ in range(2))
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    sums = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = functional.softplus(images @ texts.T).sum()
        sums.append(sum(kept.values()))
        for _ in range(exchange.size - 1):
            texts = exchange.shift(texts)
            before = len(kept)
            loss = loss + functional.softplus(images @ texts.T).sum()
            assert len(kept) == before + 2, "a block and its logits: nothing of the exchange"
            sums.append(sum(kept.values()))
    exchange.join(loss).backward()
    return sums


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_exchange_keeps_nothing_and_a_ring_loss_what_its_blocks_keep(
    world: World, size: int
) -> None:
    """C57: memory of a ring loss. mlfoundations/open_clip#942, google-research/big_vision#132."""
    images_texts_logits, block_and_logits = 2 * 8192 + 16384, 8192 + 16384
    expected = [images_texts_logits + k * block_and_logits for k in range(size)]
    assert world(saved_bytes, size) == [expected] * size
