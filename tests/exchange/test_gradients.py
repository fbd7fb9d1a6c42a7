"""The adjoint of every operation: law 2, on unequal values per rank and side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from collectives import Adapter, Exchange, Mesh, Received, Ring
from collectives.testing import check_adjoint
from collectives.topology import Cartesian
from tests.support.worlds import SIZES, World

MESHES = [
    Mesh((2, 2), axes=("y", "x")),
    Mesh((1, 2), axes=("y", "x"), periodic=True),
    Mesh((3, 2), axes=("y", "x"), periodic=(False, True)),
    Mesh((1, 1, 2), axes=("z", "y", "x"), periodic=(True, False, False)),
]
Operation = Callable[..., object]


def random(exchange: Exchange, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(exchange.rank)
    return torch.randn(shape, dtype=dtype, generator=generator)


def operations(exchange: Exchange) -> list[Operation]:
    topology = exchange.topology
    assert isinstance(topology, Cartesian)
    size = exchange.size
    open_chain = [(rank, rank + 1) for rank in range(size - 1)]
    found: list[Operation] = [
        lambda x, y: exchange.permute((x, y), open_chain),
        lambda x, y: exchange.permute({"x": x}, [(0, size - 1)]),
    ]
    for axis in topology.axes:
        found += [
            lambda x, y, axis=axis: exchange.shift([x, y.t()], 1, axis=axis),
            lambda x, y, axis=axis: exchange.shift(x[::2], -2, axis=axis),
            lambda x, y, axis=axis: exchange.shift(y, 0, axis=axis),
            lambda x, y, axis=axis: exchange.exchange(to_left=x, to_right=y, axis=axis),
            lambda x, y, axis=axis: exchange.exchange(to_left=None, to_right=(x, y), axis=axis),
            lambda x, y, axis=axis: exchange.start_exchange(
                to_left=(x, x), to_right=y, axis=axis
            ).wait(),
            lambda x, y, axis=axis: exchange.start_shift(x, 2, axis=axis).wait(),
        ]
    return found


def largest_error(adapter: Adapter, topology: Cartesian) -> float:
    exchange = Exchange(topology, adapter)
    x, y = random(exchange, 4), random(exchange, 2, 3)
    return max(check_adjoint(exchange, op, x, y) for op in operations(exchange))


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_every_backward_on_a_ring_is_the_adjoint(world: World, size: int, periodic: bool) -> None:
    assert max(world(largest_error, size, Ring(size, periodic=periodic))) <= 1e-12


@pytest.mark.parametrize("mesh", MESHES, ids=repr)
def test_every_backward_on_a_mesh_is_the_adjoint(world: World, mesh: Mesh) -> None:
    assert max(world(largest_error, mesh.size, mesh)) <= 1e-12


def complex_error(adapter: Adapter) -> float:
    exchange = Exchange(Ring, adapter)
    x = random(exchange, 3, 2, dtype=torch.complex128)
    return check_adjoint(exchange, lambda x: exchange.exchange(to_left=x.conj(), to_right=x.t()), x)


@pytest.mark.parametrize("size", SIZES)
def test_complex_gradients_are_the_adjoint(world: World, size: int) -> None:
    assert max(world(complex_error, size)) <= 1e-12


def each_side(adapter: Adapter) -> tuple[float, float]:
    exchange = Exchange(Ring, adapter)
    rank = exchange.rank
    to_left = torch.tensor([1.0], requires_grad=True)
    to_right = torch.tensor([1.0], requires_grad=True)
    received = exchange.exchange(to_left=to_left, to_right=to_right)
    loss = (received.from_left * (10 + rank) + received.from_right * (100 + rank)).sum()
    exchange.join(loss).backward()
    assert to_left.grad is not None
    assert to_right.grad is not None
    return to_left.grad.item(), to_right.grad.item()


@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_comes_back_from_the_side_it_was_sent_to(world: World, size: int) -> None:
    """What I sent to my left is its from_right. On two ranks the copied function swaps these."""
    expected = [(100 + (r - 1) % size, 10 + (r + 1) % size) for r in range(size)]
    assert world(each_side, size) == expected


def one_output(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    received = exchange.exchange(to_left=x, to_right=3 * x)
    # rank 0 uses the right side only, the others the left one only
    used = received.from_right if exchange.rank == 0 else received.from_left
    used.sum().backward()  # an expanded gradient: stride 0
    assert x.grad is not None
    return x.grad.tolist()


@pytest.mark.parametrize("size", SIZES)
def test_an_output_that_is_not_used_gives_zeros(world: World, size: int) -> None:
    def gradient(rank: int) -> float:
        from_left_neighbour = 1.0 if (rank - 1) % size == 0 else 0.0  # it uses its right side
        from_right_neighbour = 0.0 if (rank + 1) % size == 0 else 3.0
        return from_left_neighbour + from_right_neighbour

    assert world(one_output, size) == [[gradient(r)] * 2 for r in range(size)]


def mixed(adapter: Adapter) -> tuple[list[float], bool]:
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([float(exchange.rank)], requires_grad=True)
    got, labels, flags = exchange.shift((x, torch.arange(3), torch.tensor([True])))
    assert not labels.requires_grad
    assert not flags.requires_grad
    (got * (exchange.rank + 1)).sum().backward()
    assert x.grad is not None
    integers = exchange.shift(torch.arange(2))
    return x.grad.tolist(), integers.requires_grad


@pytest.mark.parametrize("size", SIZES)
def test_integer_leaves_take_no_part_in_backward(world: World, size: int) -> None:
    assert world(mixed, size) == [([float((r + 1) % size + 1)], False) for r in range(size)]


def twice(adapter: Adapter) -> Tensor:
    """f = sum over ranks of sum(shift(x)^3); its Hessian-vector product with v is 6 x v."""
    exchange = Exchange(Ring, adapter)
    x = random(exchange, 3).requires_grad_()
    v = random(exchange, 3) + 1
    received = exchange.exchange(to_left=x, to_right=x)
    f = (received.from_left**3).sum() + (received.from_right**3).sum()
    (gradient,) = torch.autograd.grad(exchange.join(f), x, create_graph=True)
    (second,) = torch.autograd.grad(exchange.join((gradient * v).sum()), x)
    assert torch.allclose(gradient, 6 * x**2, rtol=1e-13)
    return (second - 12 * x * v).abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_double_backward(world: World, size: int) -> None:
    assert max(error.item() for error in world(twice, size)) <= 1e-12


def pending_twice(adapter: Adapter) -> Tensor:
    exchange = Exchange(Ring, adapter)
    x = random(exchange, 3).requires_grad_()
    f = (exchange.start_shift(x).wait() ** 3).sum()
    (gradient,) = torch.autograd.grad(exchange.join(f), x, create_graph=True)
    (second,) = torch.autograd.grad(exchange.join((gradient**2).sum()), x)
    return (second - 36 * x**3).abs().max()


@pytest.mark.parametrize("size", SIZES)
def test_double_backward_of_a_started_exchange(world: World, size: int) -> None:
    assert max(error.item() for error in world(pending_twice, size)) <= 1e-12


def kept_buffer(adapter: Adapter) -> str:
    exchange = Exchange(Ring, adapter)
    x = torch.ones(3, requires_grad=True)
    out = torch.empty(3)
    first = exchange.shift(x, out=out)
    loss = (first * first).sum()
    exchange.shift(2 * x, out=out)
    try:
        exchange.join(loss).backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("size", SIZES)
def test_refilling_out_before_backward_is_torchs_version_error(world: World, size: int) -> None:
    for text in world(kept_buffer, size):
        assert "modified by an inplace operation" in text


def out_gradient(adapter: Adapter) -> list[float]:
    exchange = Exchange(Ring, adapter)
    x = torch.full((3,), 1.0 + exchange.rank, requires_grad=True)
    out = Received(torch.empty(3), torch.empty(3))
    for _ in range(2):  # refilled after its backward: fine
        received = exchange.exchange(to_left=x, to_right=x, out=out)
        exchange.join((received.from_left**2 + received.from_right).sum()).backward()
    assert x.grad is not None
    assert not out.from_left.requires_grad
    return x.grad.tolist()


@pytest.mark.parametrize("size", SIZES)
def test_gradients_flow_through_out(world: World, size: int) -> None:
    assert world(out_gradient, size) == [[2 * (2 * (1.0 + r) + 1)] * 3 for r in range(size)]
