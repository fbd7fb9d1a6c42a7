"""The life of an Exchange: late binding, copies, groups that go away."""

from __future__ import annotations

import copy
import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Mesh, Ring
from collectives.errors import (
    ContextError,
    ExchangeError,
    ExchangeTimeout,
    PeerLost,
    TopologyError,
)
from tests.support.modules import Holder
from tests.support.worlds import SIZES


def right_of(exchange: Exchange) -> float:
    with torch.no_grad():
        return exchange.shift(torch.tensor([float(exchange.rank)]), -1).item()


@pytest.mark.ranks(*SIZES)
def test_copies_of_a_module_with_an_exchange_bind_anew(rank: int, world_size: int) -> None:
    module = Holder()
    unused = copy.deepcopy(module)
    assert right_of(module.exchange) == (rank + 1) % world_size
    used = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), unused]
    path = Path(f"module-{os.getpid()}.pt")
    torch.save(module, path)
    used.append(torch.load(path, weights_only=False))
    path.unlink()
    for other in used:
        assert right_of(other.exchange) == (rank + 1) % world_size
    averaged = torch.optim.swa_utils.AveragedModel(module).module
    assert isinstance(averaged, Holder)
    assert right_of(averaged.exchange) == (rank + 1) % world_size


@pytest.mark.ranks(2)
def test_a_copy_without_the_group_is_an_error_never_a_local_copy(rank: int) -> None:
    module = Holder()
    right_of(module.exchange)
    data = pickle.dumps(module)
    dist.destroy_process_group()
    for exchange in (module.exchange, pickle.loads(data).exchange):
        with pytest.raises(ContextError, match="2 ranks"):
            exchange.shift(torch.ones(1))
    assert rank >= 0


@pytest.mark.ranks(3)
def test_an_exchange_goes_on_over_a_new_default_group(
    rank: int, world_size: int, tmp_path: Path
) -> None:
    exchange, fixed = Exchange(Ring, RawDDPAdapter()), Exchange(Ring(3), RawDDPAdapter())
    assert right_of(exchange) == right_of(fixed) == (rank + 1) % world_size
    dist.destroy_process_group()
    if rank == 2:
        return
    store = FileStore(str(tmp_path / "second"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    assert right_of(exchange) == 1 - rank
    with pytest.raises(TopologyError, match="has 3 ranks, but the group has 2"):
        right_of(fixed)


@pytest.mark.ranks(4)
def test_exchanges_over_subgroups_use_group_ranks(rank: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    exchange = Exchange(Ring, RawDDPAdapter(group=mine))
    assert (exchange.rank, exchange.size) == (rank // 2, 2)
    received = exchange.exchange(
        to_left=torch.tensor([10.0 * rank]), to_right=torch.tensor([10.0 * rank + 1])
    )
    peer = (rank + 2) % 4
    assert received.from_right.item() == 10 * peer
    assert received.from_left.item() == 10 * peer + 1
    with pytest.raises(ContextError, match="member"):
        Exchange(Ring, RawDDPAdapter(group=groups[1 - rank % 2])).shift(torch.ones(1))


@pytest.mark.ranks(4)
def test_mesh_axes_and_many_exchanges_need_no_new_group() -> None:
    before = len(dist.distributed_c10d._world.pg_map)
    mesh = Exchange(Mesh((2, 2), axes=("y", "x"), periodic=True), RawDDPAdapter())
    ring = Exchange(Ring, RawDDPAdapter(), name="ring")
    for axis in ("y", "x"):
        mesh.exchange(to_left=torch.ones(2), to_right=torch.ones(2), axis=axis)
    ring.shift(mesh.shift(torch.ones(2), axis="y"))
    assert len(dist.distributed_c10d._world.pg_map) == before


@pytest.mark.ranks(2)
def test_an_unchecked_exchange_and_a_checked_one_move_the_same(rank: int) -> None:
    off = Exchange(Ring, RawDDPAdapter(), verify="off")
    assert right_of(off) == right_of(Exchange(Ring, RawDDPAdapter())) == 1 - rank


@pytest.mark.ranks(2)
def test_a_peer_that_never_comes_is_a_timeout_that_says_who(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv")
    right_of(exchange)
    if rank == 1:
        # Out of the way until the other has given up.
        with pytest.raises(ExchangeError):
            exchange.shift(torch.ones(7), timeout=1.5)
        return
    with pytest.raises(ExchangeTimeout) as caught:
        exchange.shift(torch.ones(2), timeout=1.0)
    text = str(caught.value)
    assert "shift(offset=1, axis='ring') of 'kv'" in text
    assert "no answer from rank 1" in text
    assert "of 1 s (rank 0 of 2)" in text
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ExchangeError, match="cannot be used any more"):
        exchange.shift(torch.ones(2))


@pytest.mark.ranks(2, fresh=True)
def test_a_peer_that_is_gone_is_lost_by_name(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv")
    right_of(exchange)
    if rank == 1:
        dist.destroy_process_group()
        del exchange
        return
    with pytest.raises((PeerLost, ExchangeTimeout), match="rank 1"):
        exchange.shift(torch.ones(2), timeout=2.0)


def test_an_exchange_before_init_works_alone_and_notices_a_group_that_comes(
    tmp_path: Path,
) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    assert exchange.size == 1
    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert exchange.shift(torch.ones(1)).item() == 1
        assert exchange._bound().context.group is dist.group.WORLD
    finally:
        dist.destroy_process_group()
    assert exchange.shift(torch.ones(1)).item() == 1


def test_threads_and_memory_do_not_grow_with_shapes() -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    for n in range(600):
        exchange.shift(torch.ones(n))
    (route,) = exchange._bound().routes.values()
    assert len(route.calls) <= 256


@pytest.mark.filterwarnings("ignore::UserWarning")  # Dynamo looks at .grad of what is no leaf
@pytest.mark.ranks(1, 2, timeout=120)
def test_compiled_code_calls_an_exchange_through_disable(rank: int, world_size: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    shift = torch.compiler.disable(exchange.shift)

    @torch.compile(backend="eager")
    def loss(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = (shift(x * 2) * (x + 1)).sum()
        return result

    x = torch.full((3,), float(rank), requires_grad=True)
    loss(x).backward()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * (right + 1) + 2.0 * left] * 3
