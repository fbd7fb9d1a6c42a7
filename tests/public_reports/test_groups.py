"""D: groups and ranks. See README.md for the entries and their public reports."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.optim.swa_utils import AveragedModel

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Mesh, Ring, compat
from collectives.errors import ArgumentError, ContextError, ExchangeTimeout
from collectives.testing import simulate
from collectives.testing.pool import RankPool
from tests.support.modules import Holder


def one(value: float) -> Tensor:
    return torch.tensor([float(value)])


def group_of(members: list[int]) -> dist.ProcessGroup:
    """Make a group; called by all ranks."""
    group: dist.ProcessGroup = dist.new_group(members)
    return group


@pytest.mark.ranks(4)
@pytest.mark.parametrize("members", [[1, 3], [0, 1, 3], [2, 3], [1, 2, 3]], ids=str)
def test_ranks_of_an_exchange_are_positions_in_its_group(rank: int, members: list[int]) -> None:
    """C60: peer spaces. pytorch/pytorch#140460, pytorch/pytorch#118593, pytorch/pytorch#60356,
    pytorch/pytorch#149200, meta-pytorch/torchrec#4601, PaddlePaddle/Paddle#44276,
    hpcaitech/ColossalAI#6070, NVIDIA/TensorRT-LLM#17001, modelscope/ms-swift#9509,
    vllm-project/vllm-ascend#16197."""
    group = group_of(members)
    if rank not in members:
        return
    exchange = Exchange(Ring, RawDDPAdapter(group))
    size, place = len(members), members.index(rank)
    left, right = members[(place - 1) % size], members[(place + 1) % size]
    assert (exchange.rank, exchange.size) == (place, size)
    from_left, from_right = exchange.exchange(to_left=one(rank), to_right=one(rank))
    assert (from_left.item(), from_right.item()) == (left, right)
    to_first = exchange.permute(one(rank), [(size - 1, 0)])
    assert to_first.item() == (members[-1] if place == 0 else 0)


@pytest.mark.ranks(4)
def test_the_names_of_open_clip_take_global_ranks_and_translate_them(rank: int) -> None:
    """C60, through collectives.compat; there too a rank of the group would be a mistake."""
    members = [0, 1, 3]
    group = group_of(members)
    if rank not in members:
        return
    place = members.index(rank)
    left, right = members[place - 1], members[(place + 1) % 3]
    from_right, from_left = compat.neighbour_exchange_bidir(
        left, right, one(rank), one(rank), group
    )
    assert (from_left.item(), from_right.item()) == (left, right)
    with pytest.raises(ArgumentError, match=r"global rank of the group \(0, 1, 3\), got 2"):
        compat.neighbour_exchange(2, 2, one(rank), group)


@pytest.mark.ranks(4)
def test_one_group_serves_every_axis_of_a_mesh(rank: int) -> None:
    """C60: neighbours along an axis are arithmetic on one group, so none is made per axis."""
    exchange = Exchange(Mesh((2, 2), axes=("y", "x"), periodic=True), RawDDPAdapter())
    before = len(dist.distributed_c10d._world.pg_map)
    assert exchange.shift(one(rank), axis="y").item() == (rank + 2) % 4
    assert exchange.shift(one(rank), axis="x").item() == rank ^ 1
    assert len(dist.distributed_c10d._world.pg_map) == before


@pytest.mark.ranks(3)
def test_a_rank_that_is_no_member_is_refused_at_its_first_exchange(rank: int) -> None:
    """C61: calls by a non-member. pytorch/pytorch#75755, pytorch/pytorch#118614."""
    group = group_of([0, 1])  # on rank 2 it is a number: torch's mark for "not a member"
    exchange = Exchange(Ring, RawDDPAdapter(group))
    if rank == 2:
        for call in (lambda: exchange.shift(one(0)), lambda: exchange.rank, exchange.stats):
            with pytest.raises(ContextError, match="this process is not a member"):
                call()
    else:
        assert exchange.shift(one(rank)).item() == 1 - rank


@pytest.mark.ranks(4)
def test_the_axes_of_a_mesh_need_no_group_that_a_rank_could_fail_to_make(rank: int) -> None:
    """C62: new_group by members only. cornstarch-org/Cornstarch#76,
    vllm-project/llm-compressor#2869."""
    groups = dist.distributed_c10d._world.pg_map
    before = len(groups)
    exchange = Exchange(Mesh((2, 2), axes=("row", "column"), periodic=True), RawDDPAdapter())
    assert exchange.shift(one(rank), axis="row").item() == (rank + 2) % 4
    assert exchange.shift(one(rank), axis="column").item() == rank ^ 1
    assert len(groups) == before


@pytest.mark.ranks(3)
def test_a_group_that_its_members_alone_have_made_can_be_exchanged_over(rank: int) -> None:
    """C62. pytorch/pytorch#134314, pytorch/pytorch#28247, pytorch/pytorch#124268."""
    if rank == 1:
        return
    group = dist.new_group([0, 2], use_local_synchronization=True)
    exchange = Exchange(Ring, RawDDPAdapter(group))
    assert exchange.shift(one(rank)).item() == 2 - rank


@pytest.mark.ranks(4)
def test_members_that_do_not_come_to_the_first_exchange_are_named(rank: int) -> None:
    """C62: who waits for a rank that never comes is told which one, at the deadline."""
    group = group_of([0, 1, 3])
    if rank in (0, 1):
        exchange = Exchange(Ring, RawDDPAdapter(group), timeout=0.5)
        with pytest.raises(ExchangeTimeout, match=r"rank 2 did not come within .*2 of 3 came"):
            exchange.shift(one(rank))
    dist.barrier()


@pytest.mark.ranks(3, fresh=True)
def test_in_the_plain_form_members_wait_for_who_did_not_call_new_group(rank: int) -> None:
    """C62, control: the members' call returns, and the next one of all ranks does not."""
    if rank < 2:
        dist.new_group([0, 1])
    call = threading.Thread(target=make_group_of_all, daemon=True)
    call.start()
    call.join(1.5)
    assert call.is_alive() or rank == 2


def make_group_of_all() -> None:
    with suppress(RuntimeError):  # of the rank that reads addresses of the members' group
        dist.new_group([0, 1, 2])


@pytest.mark.ranks(2)
def test_a_destroyed_group_is_named_and_a_new_one_is_found(rank: int, tmp_path: Path) -> None:
    """C67: stale group (no public report)."""
    group = group_of([0, 1])
    default, chosen = Exchange(Ring, RawDDPAdapter()), Exchange(Ring, RawDDPAdapter(group))
    assert default.shift(one(rank)).item() == chosen.shift(one(rank)).item() == 1 - rank
    dist.barrier()
    dist.destroy_process_group()
    for exchange in (default, chosen):
        with pytest.raises(ContextError, match="its group of 2 ranks was destroyed"):
            exchange.shift(one(rank))
    store = FileStore(str(tmp_path / "again"), 2)
    limit = timedelta(seconds=20)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    assert default.shift(one(rank)).item() == 1 - rank
    with pytest.raises(ContextError, match="the given group does not exist any more"):
        chosen.shift(one(rank))


@pytest.mark.ranks(1, 2)
def test_a_module_with_an_exchange_can_be_copied_in_every_way(rank: int, world_size: int) -> None:
    """C68: group stored on a module. pytorch/pytorch#73825, pytorch/pytorch#76927,
    Lightning-AI/pytorch-lightning#17369, ultralytics/yolov5#13574."""
    module = Holder()
    expected = [float((rank - 1) % world_size)] * 2
    assert module.exchange.shift(rank * module.weight).tolist() == expected  # bound from here on
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    averaged = AveragedModel(module).module
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), averaged, module]
    for copied in [*copies, torch.load(saved, weights_only=False)]:
        assert copied.exchange.shift(rank * copied.weight).tolist() == expected
    assert list(module.state_dict()) == ["weight"]


def pickled_after_use() -> bytes:
    exchange = Exchange(Ring, RawDDPAdapter())
    exchange.shift(one(0))
    return pickle.dumps(exchange)


def test_a_copy_in_a_process_without_its_group_does_not_turn_local(rank_pool: RankPool) -> None:
    """C68: what was bound to two ranks never exchanges with itself, without a word."""
    for data in rank_pool.run(pickled_after_use, size=2):
        with pytest.raises(ContextError, match="it was pickled in another process"):
            pickle.loads(data).shift(one(0))


@pytest.mark.ranks(1)
def test_a_module_with_a_plain_group_cannot_be_copied() -> None:
    """C68, control."""
    module = torch.nn.Linear(1, 1)
    module.group = dist.group.WORLD  # type: ignore[assignment]
    for attempt in (copy.deepcopy, pickle.dumps, AveragedModel):
        with pytest.raises(TypeError, match="cannot pickle"):
            attempt(module)


def test_many_ranks_in_one_process_exchange_for_real() -> None:
    """C76: single-process fakes. pytorch/pytorch#119549."""

    def program(adapter: object) -> tuple[float, float]:
        exchange = Exchange(Ring, adapter)  # type: ignore[arg-type]
        received = exchange.exchange(to_left=one(exchange.rank), to_right=one(exchange.rank))
        return received.from_left.item(), received.from_right.item()

    assert simulate(64, program) == [((r - 1) % 64, (r + 1) % 64) for r in range(64)]


@pytest.mark.ranks(1, backend=None)
def test_torchs_fake_backend_reports_success_and_delivers_nothing() -> None:
    """C76, control."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    arrived = torch.full((2,), -7.0)
    ops = [dist.P2POp(dist.isend, torch.ones(2), 2), dist.P2POp(dist.irecv, arrived, 0)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert arrived.tolist() == [-7.0, -7.0]
