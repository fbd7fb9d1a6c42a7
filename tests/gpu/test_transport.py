"""The transport of backends that coalesce, driven directly.

On one GPU every message is one to itself, which NCCL allows inside a batch. On CPUs the same bodies
run over gloo, posted in batches, where each rank's peer is the next one.
"""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collectives.header import SIZE as HEADER_SIZE
from collectives.header import Header, Pair
from collectives.messages import Pack
from collectives.signature import Signature
from collectives.transport import Post
from collectives.transport.group import GroupTransport, wire_of
from collectives.transport.rounds import MOST_IN_BATCH
from tests.support.accelerators import BatchedAdapter, local_device, wait_for

T = timedelta(seconds=30)


def transport_on(kind: str) -> tuple[GroupTransport, torch.device]:
    device = local_device(kind)
    transport = BatchedAdapter(device).transport
    transport.open(30)
    return transport, device


def value(rank: int, number: int) -> float:
    return 1000.0 * rank + number


def pass_on(transport: GroupTransport, device: torch.device, shapes: list[int]) -> list[Tensor]:
    """Send tensors to the next rank, in one exchange, and return what came from the last."""
    rank, size = transport.rank, transport.size
    sent = [torch.full((n,), value(rank, i), device=device) for i, n in enumerate(shapes)]
    arrived = [torch.empty(n, device=device) for n in shapes]
    assert transport.batch is not None
    posts = [Post("send", x, (rank + 1) % size, 0) for x in sent]
    posts += [Post("recv", x, (rank - 1) % size, 0) for x in arrived]
    for work in transport.batch(posts):
        work.wait(T)
    return arrived


def coalescing(kind: str) -> None:
    transport, device = transport_on(kind)
    source = (transport.rank - 1) % transport.size
    for i, x in enumerate(pass_on(transport, device, [1, 4_096, 1_000_000])):
        assert x.eq(value(source, i)).all()


def chunks(kind: str) -> None:
    transport, device = transport_on(kind)
    source = (transport.rank - 1) % transport.size
    shapes = [1 + i % 7 for i in range(MOST_IN_BATCH + 44)]  # 600 operations
    for i, x in enumerate(pass_on(transport, device, shapes)):
        assert x.eq(value(source, i)).all()


def headers(kind: str) -> None:
    transport, device = transport_on(kind)
    signature = Signature("shift", "kv", "Ring(2)", "forward", "grad", (1,), "", 5)
    pair = Pair(peer=1, sends=11, expects=11, leaves=3, smooth=True, key=0)
    mine = Header.of(signature, pair, phase=0, grad=True)
    out = torch.frombuffer(bytearray(mine.pack()), dtype=torch.uint8).to(device)
    into = torch.empty(HEADER_SIZE, dtype=torch.uint8, device=device)
    rank, size = transport.rank, transport.size
    assert transport.batch is not None
    posts = [Post("recv", into, (rank - 1) % size, 0), Post("send", out, (rank + 1) % size, 0)]
    for work in transport.batch(posts):
        # What agree.swap does: the host reads what came, so it must be held until then.
        getattr(work, "arrive")(T)  # noqa: B009 - not part of the protocol
    assert Header.unpack(bytes(into.tolist())) == mine
    assert not mine.differences(Header.unpack(bytes(into.tolist())))


def own_group(kind: str) -> None:
    """DDP's messages travel over the group itself, exchanges over one of their own."""
    transport, device = transport_on(kind)
    group = dist.group.WORLD
    assert group is not None
    alone = transport.size == 1
    assert (wire_of(group) is group) == alone
    transport.open(30)
    again = BatchedAdapter(device).transport
    again.open(30)
    assert len(dist.distributed_c10d._world.pg_map) == (1 if alone else 2)
    total = torch.ones(1, device=device)
    work = dist.all_reduce(total, async_op=True)
    pass_on(again, device, [8])
    assert work is not None
    work.wait()
    assert total.item() == transport.size


BODIES = [coalescing, chunks, headers, own_group]
each = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)


@pytest.mark.ranks(2, 3)
@each
def test_batches_over_gloo(body: object) -> None:
    assert callable(body)
    body("cpu")


@pytest.mark.gpu
@pytest.mark.ranks(1, backend="nccl", timeout=120, fresh=True)
@each
def test_batches_to_oneself_over_nccl(body: object) -> None:
    assert callable(body)
    torch.cuda.set_device(0)
    body("cuda")


def first_batch_is_of_all() -> None:
    """Only ranks 0 and 1 exchange: the others are needed all the same, for NCCL's first batch."""
    transport, device = transport_on("cpu")
    rank = transport.rank
    assert transport.batch is not None
    if rank < 2:
        mine, other = torch.full((3,), float(rank)), torch.empty(3)
        posts = [Post("send", mine, 1 - rank, 0), Post("recv", other, 1 - rank, 0)]
        for work in transport.batch(posts):
            work.wait(T)
        assert other.eq(1 - rank).all()
    else:
        assert list(transport.batch([])) == []
    assert device.type == "cpu"


@pytest.mark.ranks(3)
def test_ranks_that_have_nothing_to_send_take_part_in_the_first_batch() -> None:
    first_batch_is_of_all()
    assert dist.group.WORLD is not None
    own = wire_of(dist.group.WORLD)
    assert own is not dist.group.WORLD
    assert own.size() == 3


@pytest.mark.ranks(2)
def test_gloo_refuses_a_gpu_before_its_memory_is_read_as_the_cpus() -> None:
    from collectives.errors import ContextError

    assert dist.group.WORLD is not None
    with pytest.raises(ContextError, match=r"gloo sends tensors of the CPU only.*cuda:0"):
        GroupTransport(dist.group.WORLD, torch.device("cuda", 0))


# -- streams: what only a GPU has ----------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.ranks(1, backend="nccl", timeout=120, fresh=True)
def test_a_stream_that_waits_sees_what_came_and_others_go_on() -> None:
    torch.cuda.set_device(0)
    transport, device = transport_on("cuda")
    assert transport.batch is not None
    side = torch.cuda.Stream(device)
    sent, arrived = torch.zeros(1 << 22, device=device), torch.empty(1 << 22, device=device)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # what is sent is written late, on this stream
        sent.fill_(3)
        works = transport.batch([Post("send", sent, 0, 0), Post("recv", arrived, 0, 0)])
        for work in works:
            work.wait(T)
        total = arrived.sum()
    torch.cuda.current_stream(device).wait_stream(side)
    assert total.item() == 3 * (1 << 22)


@pytest.mark.gpu
def test_a_buffer_is_given_to_the_stream_that_has_waited_for_it() -> None:
    device = local_device("cuda")
    pack = Pack((0, 1), ((2,), (3,)), torch.float32)
    first = pack.take(device)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        pack.give(first)
    assert pack.take(device) is not first
    with torch.cuda.stream(side):
        assert pack.take(device) is first
    wait_for(device)


def test_a_buffer_of_the_cpu_is_used_again() -> None:
    pack = Pack((0, 1), ((2,), (3,)), torch.float32)
    first, second = pack.take(torch.device("cpu")), pack.take(torch.device("cpu"))
    assert first is not second
    pack.give(first)
    assert pack.take(torch.device("cpu")) is first
    assert len({id(x) for x in itertools.chain(first.views, second.views)}) == 4
