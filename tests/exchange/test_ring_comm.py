"""RingComm: the class of ring-attention code, right at every size."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from collectives.compat import RingComm
from collectives.errors import ArgumentError, ContextError, ExchangeError
from tests.support.worlds import SIZES


@pytest.mark.ranks(*SIZES)
def test_each_tensor_comes_from_the_rank_before(rank: int, world_size: int) -> None:
    comm = RingComm(None)
    before = (rank - 1) % world_size
    assert (comm.rank, comm.world_size) == (rank, world_size)
    assert (comm.send_rank, comm.recv_rank) == ((rank + 1) % world_size, before)
    one = comm.send_recv(torch.full((3, 2), float(rank)).t())
    two = comm.send_recv(
        torch.tensor([rank, rank + 1]), buffer := torch.empty(2, dtype=torch.int64)
    )
    comm.commit()
    comm.wait()
    assert two is buffer
    assert one.shape == (2, 3)
    assert one.eq(before).all()
    assert two.tolist() == [before, before + 1]


@pytest.mark.ranks(*SIZES)
def test_a_loop_of_key_and_value_sees_every_block(rank: int, world_size: int) -> None:
    """The loop of ring_flash_attn, with the two buffers that it swaps."""
    comm = RingComm(dist.group.WORLD)
    k, v = torch.full((2,), float(rank), requires_grad=True), torch.full((2,), -float(rank))
    seen = []
    k_buffer: Tensor | None = None
    v_buffer: Tensor | None = None
    for step in range(world_size):
        next_k, next_v = comm.send_recv_kv(k, v, k_buffer, v_buffer)
        assert torch.equal(k, -v)
        seen.append(int(k[0].item()))
        comm.wait()
        if step > 0:
            k_buffer, v_buffer = k, v
        k, v = next_k, next_v
        assert not k.requires_grad
    assert seen == [(rank - hop) % world_size for hop in range(world_size)]


class PassedOn(torch.autograd.Function):
    """A hand-written backward, with a ring of its own for the gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        del ctx
        comm = RingComm()
        arrived = comm.send_recv(x)
        comm.commit()
        comm.wait()
        return arrived

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        del ctx
        comm, size = RingComm(), dist.get_world_size()
        grad = grads[0]
        for _ in range(size - 1):  # all the way round is one step back
            arrived = comm.send_recv(grad)
            comm.commit()
            comm.wait()
            grad = arrived
        return grad


@pytest.mark.ranks(*SIZES)
def test_it_works_inside_a_hand_written_function(rank: int, world_size: int) -> None:
    x = torch.full((2,), float(rank), requires_grad=True)
    y = PassedOn.apply(x)  # type: ignore[no-untyped-call]
    (y.sum() * (rank + 1)).backward()
    assert y.tolist() == [(rank - 1) % world_size] * 2
    assert x.grad is not None
    assert x.grad.tolist() == [(rank + 1) % world_size + 1] * 2


@pytest.mark.ranks(*SIZES)
def test_calls_in_the_wrong_order_are_named(rank: int, world_size: int) -> None:
    comm, here = RingComm(), rf"\(rank {rank} of {world_size}\)"
    with pytest.raises(ExchangeError, match=f"commit: there is nothing to send {here}"):
        comm.commit()
    with pytest.raises(ExchangeError, match=f"wait: nothing is on its way {here}"):
        comm.wait()
    x = torch.ones(2)
    comm.send_recv(x)
    comm.commit()
    for again in (comm.commit, lambda: comm.send_recv(x)):
        with pytest.raises(ExchangeError, match=f"still on its way {here}; call wait"):
            again()
    comm.wait()
    comm.send_recv(x, x)
    with pytest.raises(ArgumentError, match="shares memory with a tensor that is sent"):
        comm.commit()


@pytest.mark.ranks(2)
def test_writing_to_what_is_being_sent_is_named() -> None:
    comm, x = RingComm(), torch.ones(2)
    comm.send_recv(x)
    comm.commit()
    x.add_(1)
    with pytest.raises(ExchangeError, match=r"RingComm.*modified in place between"):
        comm.wait()


@pytest.mark.ranks(4)
def test_a_subgroup_is_a_ring_of_its_own(rank: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    comm, peer = RingComm(groups[rank % 2]), (rank + 2) % 4
    assert (comm.rank, comm.world_size) == (rank // 2, 2)
    assert (comm.send_rank, comm.recv_rank) == (peer, peer)
    arrived = comm.send_recv(torch.tensor(rank))
    comm.commit()
    comm.wait()
    assert arrived.item() == peer
    with pytest.raises(ContextError, match="not a member"):
        RingComm(groups[1 - rank % 2])
