"""open_clip's names: right at every size, with its order of results."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from collectives import compat
from collectives.errors import ArgumentError
from tests.support.plain import both_ways
from tests.support.worlds import SIZES


def sides(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([10.0 * rank]), torch.tensor([10.0 * rank + 1])


@pytest.mark.ranks(*SIZES)
def test_bidir_gives_from_right_then_from_left(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    to_left, to_right = sides(rank)
    from_right, from_left = compat.neighbour_exchange_bidir(left, right, to_left, to_right)
    assert from_right.item() == 10 * right
    assert from_left.item() == 10 * left + 1
    assert not from_right.requires_grad


@pytest.mark.ranks(*SIZES)
def test_one_way_gives_what_the_source_sent(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    arrived = compat.neighbour_exchange(left, right, torch.full((3, 2), float(rank)).t())
    assert arrived.shape == (2, 3)
    assert arrived.eq(left).all()
    assert not arrived.requires_grad


@pytest.mark.ranks(*SIZES)
def test_gradients_come_back_from_the_right_sides(rank: int, world_size: int) -> None:
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    to_left, to_right, onward = (torch.ones(2, requires_grad=True) for _ in range(3))
    from_right, from_left = compat.neighbour_exchange_bidir_with_grad(
        left, right, to_left, to_right
    )
    passed = compat.neighbour_exchange_with_grad(left, right, onward)
    loss = (rank + 1) * from_right.sum() + 100 * (rank + 1) * from_left.sum() + passed.sum()
    # rank 0 drops everything: join makes it take part all the same
    compat.join(loss.detach() if rank == 0 else loss).backward()
    weights = [0.0, *(float(r + 1) for r in range(1, world_size))]
    for x, expected in (
        (to_left, weights[left]),
        (to_right, 100 * weights[right]),
        (onward, 0.0 if right == 0 else 1.0),
    ):
        assert x.grad is not None
        assert x.grad.tolist() == [expected] * 2


@pytest.mark.ranks(2, 3)
def test_the_copied_function_swaps_the_sides_on_two_ranks(rank: int, world_size: int) -> None:
    """The control: what this project grew from is wrong on two ranks, every time, and silent."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    wrong = 0
    for _ in range(100):
        from_right, from_left = both_ways(*sides(rank))
        wrong += from_right.item() != 10 * right or from_left.item() != 10 * left + 1
        from_right, from_left = compat.neighbour_exchange_bidir(left, right, *sides(rank))
        assert from_right.item() == 10 * right
        assert from_left.item() == 10 * left + 1
    assert wrong == (100 if world_size == 2 else 0)


@pytest.mark.ranks(4)
def test_ranks_are_global_also_in_a_subgroup(rank: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group, peer = groups[rank % 2], (rank + 2) % 4
    arrived = compat.neighbour_exchange(peer, peer, torch.tensor(rank), group=group)
    assert arrived.item() == peer
    with pytest.raises(ArgumentError, match=rf"global rank of the group \({rank % 2}, "):
        compat.neighbour_exchange(peer, (rank + 1) % 4, torch.tensor(rank), group=group)


def test_without_a_group_a_process_exchanges_with_itself() -> None:
    to_left, to_right = sides(0)
    from_right, from_left = compat.neighbour_exchange_bidir(0, 0, to_left, to_right)
    assert (from_right.item(), from_left.item()) == (0, 1)
    assert from_right.data_ptr() != to_left.data_ptr()
    with pytest.raises(ArgumentError, match="got 1"):
        compat.neighbour_exchange(0, 1, to_left)
