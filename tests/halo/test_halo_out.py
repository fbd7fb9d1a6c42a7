"""Padded buffers of the caller: an interior that is in place is not copied."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from collectives import Adapter, Exchange, Mesh
from collectives.errors import ArgumentError
from collectives.testing import simulate

DIMS: dict[int, str | int | None] = {0: "y", 1: "x"}


def grid(adapter: Adapter) -> Exchange:
    return Exchange(lambda size: Mesh.balanced(size, 2, axes=("y", "x"), periodic=True), adapter)


def in_place(exchange: Exchange) -> tuple[Tensor, Tensor]:
    """A buffer that is not a number but in its interior, and the interior."""
    generator = torch.Generator().manual_seed(exchange.rank)
    buffer = torch.full((5, 7), float("nan"), dtype=torch.float64)
    interior = buffer[1:-1, 2:-1]
    interior.copy_(torch.randn(3, 4, dtype=torch.float64, generator=generator))
    return buffer, interior


WIDTH: dict[int, int | tuple[int, int]] = {0: 1, 1: (2, 1)}


class LargestCopy(TorchDispatchMode):
    """Elements of the largest tensor that was copied to somewhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.clone.default):
            self.elements = max(self.elements, args[0].numel())
        return func(*args, **(kwargs or {}))


def copies(adapter: Adapter) -> bool:
    exchange = grid(adapter)
    buffer, interior = in_place(exchange)
    expected = exchange.halo_exchange(interior.clone(), DIMS, WIDTH)
    with LargestCopy() as largest, torch.no_grad():
        result = exchange.halo_exchange(interior, DIMS, WIDTH, out=buffer)
    assert result.data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer, expected)
    return bool(0 < largest.elements < interior.numel())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_interior_that_is_in_place_is_not_copied(size: int) -> None:
    assert all(simulate(size, copies))


def gradients(adapter: Adapter) -> bool:
    exchange = grid(adapter)
    buffer, interior = in_place(exchange)
    plain = interior.clone().requires_grad_()
    (exchange.halo_exchange(plain, DIMS, WIDTH) ** 3).sum().backward()
    leaf = interior.detach().requires_grad_()
    for x, out in ((leaf, buffer), (leaf, torch.empty(7, 5, dtype=torch.float64).mT)):
        padded = exchange.halo_exchange(x, DIMS, WIDTH, out=out)
        assert padded.data_ptr() == out.data_ptr()
        (exchange.join((padded**3).sum())).backward()
    assert plain.grad is not None
    assert leaf.grad is not None
    return torch.allclose(leaf.grad, 2 * plain.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_buffers_of_any_strides_carry_the_gradient(size: int) -> None:
    assert all(simulate(size, gradients))


def test_a_buffer_that_is_filled_again_before_backward_is_an_error() -> None:
    def program(adapter: Adapter) -> None:
        exchange = grid(adapter)
        x, out = torch.ones(3, 4, requires_grad=True), torch.empty(5, 6)
        first = exchange.halo_exchange(x, DIMS, out=out).square().sum()
        exchange.halo_exchange(x, DIMS, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first.backward()

    simulate(1, program)


def test_a_started_halo_is_written_into_the_buffer_at_wait() -> None:
    def program(adapter: Adapter) -> bool:
        exchange = grid(adapter)
        buffer, interior = in_place(exchange)
        expected = exchange.halo_exchange(interior.clone(), DIMS, WIDTH)
        with torch.no_grad():
            pending = exchange.start_halo_exchange(interior, DIMS, WIDTH, out=buffer)
            middle = interior.sum()
            assert torch.equal(pending.wait(), expected)
        return bool(middle == buffer[1:-1, 2:-1].sum())

    assert all(simulate(2, program))


@pytest.mark.parametrize(
    "memory", ["beside", "transposed", "expanded", "wrong dtype", "needs a gradient"]
)
def test_other_memory_is_refused(memory: str) -> None:
    def program(adapter: Adapter) -> None:
        exchange = grid(adapter)
        base = torch.zeros(6, 6)
        x = base[1:5, 1:5]
        out = {
            "beside": torch.zeros(50)[:36].view(6, 6),
            "transposed": base.mT,
            "expanded": torch.zeros(6, 1).expand(6, 6),
            "wrong dtype": torch.zeros(6, 6, dtype=torch.float64),
            "needs a gradient": torch.zeros(6, 6, requires_grad=True),
        }[memory]
        if memory == "beside":
            x = out.flatten()[:16].view(4, 4)
        with pytest.raises(ArgumentError, match=r"halo_exchange.*out= .*\(rank 0 of 1\)"):
            exchange.halo_exchange(x, DIMS, out=out)

    simulate(1, program)


def test_a_buffer_is_refused_inside_a_transform() -> None:
    def program(adapter: Adapter) -> None:
        exchange = grid(adapter)
        out = torch.empty(5, 6)
        with pytest.raises(ArgumentError, match=r"torch\.func transforms"):
            torch.func.grad(lambda x: exchange.halo_exchange(x, DIMS, out=out).sum())(
                torch.ones(3, 4)
            )

    simulate(1, program)
