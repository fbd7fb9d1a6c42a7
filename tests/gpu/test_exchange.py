"""Exchanges on one device, and over several ranks as NCCL would carry them.

The same bodies run on the CPU and on a GPU, where each exchange is a copy within the device. Over
gloo in batches they run on several ranks, with the headers that backends without tags need.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from adapters.fabric import FabricAdapter
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.accelerators import BatchedAdapter, local_device, wait_for
from tests.support.probe import loader, ring_class, trainer

KINDS = pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def of(exchange: Exchange, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(exchange.rank)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(exchange.device, dtype)


def values(exchange: Exchange) -> None:
    left, right = (exchange.rank - 1) % exchange.size, (exchange.rank + 1) % exchange.size
    mine = torch.full((3,), float(exchange.rank), device=exchange.device)
    large = torch.full((100_000,), float(exchange.rank), device=exchange.device)
    received = exchange.exchange(to_left=[mine, mine.long(), large], to_right=mine.half())
    assert received.from_right[2].eq(right).all()
    assert [x.eq(right).all().item() for x in received.from_right] == [True] * 3
    assert received.from_left.eq(left).all()
    assert received.from_left.dtype is torch.float16
    assert received.from_left.device == exchange.device
    out = torch.empty_like(mine)
    assert exchange.shift(mine, out=out).eq(left).all()
    assert out.eq(left).all()
    assert exchange.shift(mine[::2]).eq(left).all()


def gradients(exchange: Exchange) -> None:
    x = of(exchange, 4).requires_grad_()
    received = exchange.exchange(to_left=x, to_right=x)
    pending = exchange.start_shift(x * 2)
    loss = ((exchange.rank + 1) * received.from_left + 5 * received.from_right).sum()
    exchange.join(loss + 7 * pending.wait().sum()).backward()
    assert x.grad is not None
    # What I sent to the right is weighted there; the rest is the same everywhere.
    assert x.grad.eq((exchange.rank + 1) % exchange.size + 1 + 5 + 14).all()
    assert x.grad.device == exchange.device


def operations(exchange: Exchange) -> None:
    size, x = exchange.size, of(exchange, 6)
    torch.testing.assert_close(exchange.all_reduce(x), exchange.all_gather(x).view(size, 6).sum(0))
    padded = exchange.halo_exchange(x, {0: "ring"})
    assert padded[0] == exchange.shift(x)[-1]
    folded = exchange.ring_fold(lambda source, block, x: (x * block).sum(), x, x)
    torch.testing.assert_close(folded, (x * exchange.all_reduce(x)).sum())
    exchange.gossip_([y := x.clone()])
    assert exchange.consensus_distance([y]) <= exchange.consensus_distance([x]) + 1e-12


def low_precision(exchange: Exchange) -> None:
    layer = torch.nn.Linear(4, 4, device=exchange.device)
    with torch.autocast(exchange.device.type, torch.bfloat16):
        mine = layer(of(exchange, 2, 4, dtype=torch.float32))
        loss = (mine * exchange.shift(mine)).float().sum()
    exchange.join(loss).backward()
    assert mine.dtype is torch.bfloat16
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


BODIES: list[Callable[[Exchange], None]] = [values, gradients, operations, low_precision]
each = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)


@pytest.mark.ranks(1, backend=None, timeout=120)
@KINDS
@each
def test_alone_on_a_device(kind: str, body: Callable[[Exchange], None]) -> None:
    body(Exchange(Ring, RawDDPAdapter(device=local_device(kind))))
    wait_for(local_device(kind))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verify", ["auto", "always", "off"])
@each
def test_on_several_ranks_in_batches(body: Callable[[Exchange], None], verify: str) -> None:
    body(Exchange(Ring, BatchedAdapter(), verify=verify))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.ranks(1, backend="nccl", timeout=120, fresh=True)
@each
def test_in_a_group_of_one_over_nccl(body: Callable[[Exchange], None]) -> None:
    torch.cuda.set_device(0)
    body(Exchange(Ring, RawDDPAdapter(device=local_device("cuda"))))
    assert dist.is_initialized()


def compiled_in_part(exchange: Exchange, backend: str) -> None:
    shift = torch.compiler.disable(exchange.shift)

    def step(x: Tensor) -> Tensor:
        return torch.tanh(shift(x * 2) + 1)

    x = of(exchange, 64).requires_grad_()
    torch.compile(step, backend=backend)(x).sum().backward()
    again = x.detach().requires_grad_()
    step(again).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.ranks(1, backend=None, timeout=300)
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("cpu", "aot_eager"), pytest.param("cuda", "inductor", marks=pytest.mark.gpu)],
)
def test_compiled_code_around_an_exchange(kind: str, backend: str) -> None:
    compiled_in_part(Exchange(Ring, RawDDPAdapter(device=local_device(kind))), backend)


@pytest.mark.ranks(1, backend=None, timeout=120)
@pytest.mark.parametrize(
    ("kind", "accelerator"), [("cpu", "cpu"), pytest.param("cuda", "gpu", marks=pytest.mark.gpu)]
)
def test_a_trainer_of_one_device(kind: str, accelerator: str) -> None:
    module = ring_class("lightning.pytorch")()
    fit = trainer("lightning.pytorch", accelerator=accelerator, devices=1, strategy="auto")
    fit.fit(module, loader(), loader())
    assert module.found["training_step"].device == local_device(kind)
    assert module.exchange.stats()["exchanges"] == 4  # 2 steps, forward and backward


@pytest.mark.ranks(1, backend=None, timeout=120)
@KINDS
def test_fabric_on_one_device(kind: str) -> None:
    from lightning.fabric import Fabric

    runtime = Fabric(accelerator=kind, devices=1)
    runtime.launch()
    exchange = Exchange(Ring, FabricAdapter(runtime))
    layer = torch.nn.Linear(4, 1)
    model, optimizer = runtime.setup(layer, torch.optim.SGD(layer.parameters(), 0.1))
    before = layer.weight.detach().clone()
    mine = model(torch.ones(2, 4, device=runtime.device))
    runtime.backward(exchange.join((mine * exchange.shift(mine)).mean()))
    optimizer.step()
    assert exchange.device == local_device(kind)
    assert not layer.weight.detach().equal(before.to(layer.weight.device))


# -- what only a GPU has -------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.ranks(1, backend=None, timeout=120)
def test_a_local_exchange_is_captured_in_a_cuda_graph() -> None:
    exchange = Exchange(Ring, RawDDPAdapter(device=local_device("cuda")))
    x = torch.ones(8, device=exchange.device)
    side = torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as torch asks for: once before, on another stream
            exchange.shift([x, x * 2])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first, second = exchange.shift([x, x * 2])
    x.fill_(5)
    graph.replay()
    wait_for(exchange.device)
    assert first.eq(5).all()
    assert second.eq(10).all()


@pytest.mark.gpu
@pytest.mark.ranks(1, backend="nccl", timeout=120, fresh=True)
def test_fsdp1_of_one_rank_trains_with_an_exchange_in_its_loss() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.cuda.set_device(0)
    device = local_device("cuda")
    exchange = Exchange(Ring, RawDDPAdapter(device=device))
    layer = torch.nn.Linear(4, 2, device=device)
    plain = torch.nn.Linear(4, 2, device=device)
    plain.load_state_dict(layer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one rank shards nothing
        sharded = FullyShardedDataParallel(layer, device_id=0)
    x = of(exchange, 3, 4, dtype=torch.float32)
    for model in (sharded, plain):
        mine = model(x)
        exchange.join((mine * exchange.shift(mine)).sum()).backward()
    with FullyShardedDataParallel.summon_full_params(sharded, with_grads=True):
        torch.testing.assert_close(layer.weight.grad, plain.weight.grad)


@pytest.mark.gpu
@pytest.mark.ranks(1, backend=None, timeout=120)
def test_many_exchanges_leave_no_memory_behind() -> None:
    exchange = Exchange(Ring, RawDDPAdapter(device=local_device("cuda")))
    x = torch.ones(1 << 16, device=exchange.device, requires_grad=True)

    def step() -> None:
        exchange.join(exchange.shift([x, x * 2])[1].sum()).backward()
        x.grad = None

    step()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        step()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
