"""C: transforms, inference mode, subclasses. See README.md for the entries and public reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ArgumentError
from tests.support.worlds import SIZES, World

EVERY_SIZE = pytest.mark.parametrize("size", SIZES)
FORWARD_MODE = pytest.mark.ranks(1, 2, 3)  # its levels are one per process, not per thread


def cube(exchange: Exchange) -> Callable[[Tensor], Tensor]:
    return lambda x: (exchange.rank + 1) * exchange.shift(x**3, fill=4)


def start(adapter: Adapter) -> tuple[Exchange, Tensor, Tensor]:
    """Return an exchange, an x by rank, and the gradient of the sum of ``cube`` over ranks."""
    exchange = Exchange(Ring, adapter)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64) + exchange.rank
    weight = (exchange.rank + 1) % exchange.size + 1
    return exchange, x, 3 * weight * x**2


def func_grad(adapter: Adapter) -> bool:
    exchange, x, expected = start(adapter)
    f = cube(exchange)
    gradient = torch.func.grad(lambda x: f(x).sum())(x)
    both, value = torch.func.grad_and_value(lambda x: f(x).sum())(x)
    assert torch.equal(value, f(x).sum())
    _, pull, *_ = torch.func.vjp(f, x)
    (pulled,) = pull(torch.ones_like(x))
    jacobian = torch.func.jacrev(f, chunk_size=1)(x)
    assert isinstance(jacobian, Tensor)
    return all(torch.allclose(g, expected) for g in (gradient, both, pulled, jacobian.diagonal()))


@EVERY_SIZE
def test_torch_func_grad_vjp_and_jacrev_give_the_gradient(world: World, size: int) -> None:
    """C52: transforms (no public report)."""
    assert all(world(func_grad, size))


@FORWARD_MODE
def test_torch_func_jvp_and_dual_numbers_give_the_tangent() -> None:
    """C52: forward mode; the tangent travels as the tensor does."""
    exchange, x, _ = start(RawDDPAdapter())
    f = cube(exchange)
    expected = (exchange.rank + 1) * exchange.shift(3 * x**2 * 5)
    value, tangent, *_ = torch.func.jvp(f, (x,), (torch.full_like(x, 5),))
    assert torch.equal(value, f(x))
    assert torch.allclose(tangent, expected)
    with forward_ad.dual_level():
        moved = f(forward_ad.make_dual(x, torch.full_like(x, 5)))
        tangent = forward_ad.unpack_dual(moved).tangent
    assert torch.allclose(tangent, expected)


def jacobian(adapter: Adapter) -> bool:
    exchange, x, expected = start(adapter)
    # One backward per element, on every rank alike.
    matrix = torch.autograd.functional.jacobian(cube(exchange), x)
    hessian = torch.autograd.functional.hessian(lambda x: cube(exchange)(x).sum(), x)
    assert isinstance(matrix, Tensor)
    assert isinstance(hessian, Tensor)
    weight = (exchange.rank + 1) % exchange.size + 1
    return torch.allclose(matrix, torch.diag(expected)) and torch.allclose(
        hessian, torch.diag(6 * weight * x)
    )


@EVERY_SIZE
def test_jacobian_and_hessian_are_right(world: World, size: int) -> None:
    """C52: torch.autograd.functional."""
    assert all(world(jacobian, size))


def with_anomaly_mode(adapter: Adapter) -> bool:
    exchange, x, expected = start(adapter)
    x.requires_grad_()
    exchange.join(cube(exchange)(x).sum()).backward()
    assert x.grad is not None
    return torch.allclose(x.grad, expected)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@EVERY_SIZE
def test_anomaly_mode_finds_nothing(world: World, size: int) -> None:
    """C52: detect_anomaly, which holds for the whole process."""
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        assert all(world(with_anomaly_mode, size))
    assert not torch.is_anomaly_enabled()


def batched(adapter: Adapter) -> bool:
    exchange, x, expected = start(adapter)
    f = cube(exchange)
    rows = torch.stack([x, x])
    assert torch.equal(torch.func.vmap(f)(rows), f(rows))
    gradients = torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(rows)
    before = exchange.stats()["exchanges"]
    with pytest.raises(ArgumentError, match=r"cannot run under vmap .* leave vectorize=True"):
        torch.autograd.functional.jacobian(f, x, vectorize=True)
    # Nothing was posted for a gradient, and the remedy works.
    assert exchange.stats()["exchanges"] == before + 1
    matrix = torch.autograd.functional.jacobian(f, x)
    assert isinstance(matrix, Tensor)
    torch.testing.assert_close(matrix, torch.diag(expected))
    return torch.allclose(gradients, torch.stack([expected, expected]))


@EVERY_SIZE
def test_vmap_is_one_exchange_and_its_forerunner_is_refused_with_the_remedy(
    world: World, size: int
) -> None:
    """C52: an exchange of one row at a time would be one of another number on each rank."""
    assert all(world(batched, size))


def in_inference_mode(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    source = float((exchange.rank - 1) % exchange.size)
    with torch.inference_mode():
        mine = torch.full((3,), float(exchange.rank))
        frozen = exchange.shift(mine)
        pair = exchange.shift([mine, mine])  # packed, into a buffer that is kept
    assert frozen.is_inference()
    assert frozen.eq(source).all()
    assert pair[1].eq(source).all()
    # What was made in inference mode can be sent outside it, and what arrives is ordinary.
    ordinary, _ = exchange.shift([mine, mine])
    assert not ordinary.is_inference()
    weight = torch.ones(3, requires_grad=True)
    (ordinary * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(source).all()
    # Torch's own rule for the rest.
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (frozen * weight).sum()
    return True


@EVERY_SIZE
def test_inference_tensors_travel_by_torchs_own_rule(world: World, size: int) -> None:
    """C53: inference tensors (no public report)."""
    assert all(world(in_inference_mode, size))


class Tagged(torch.Tensor):
    note = ""


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(  # type: ignore[no-untyped-def]
        cls, func, types, args=(), kwargs=None
    ):
        if getattr(func, "__name__", "") in ("isend", "copy_", "contiguous"):
            raise TypeError(f"{func.__name__} was seen by __torch_function__")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def subclasses(adapter: Adapter) -> bool:
    exchange = Exchange(Ring, adapter)
    source = float((exchange.rank - 1) % exchange.size)
    parameter = Parameter(torch.full((2,), float(exchange.rank)))
    tagged = torch.full((2,), float(exchange.rank)).as_subclass(Tagged)
    tagged.note = "mine"
    logged = torch.full((2,), float(exchange.rank)).as_subclass(Logged)
    kinds: list[Tensor] = [parameter, tagged, logged]
    for sent in kinds:
        for arrived in (exchange.shift(sent), exchange.shift([sent, sent])[1]):
            assert type(arrived) is Tensor  # the peer's data, not my attributes with it
            assert arrived.eq(source).all()
    (exchange.shift(parameter) * (exchange.rank + 1)).sum().backward()
    assert parameter.grad is not None
    return parameter.grad.tolist() == [(exchange.rank + 1) % exchange.size + 1] * 2


@EVERY_SIZE
def test_subclasses_travel_as_the_tensors_that_they_wrap(world: World, size: int) -> None:
    """C54: tensor subclasses. pytorch/pytorch#113123, NVIDIA/physicsnemo#1147."""
    assert all(world(subclasses, size))


@pytest.mark.ranks(1, 2)
def test_a_dtensor_is_refused_with_the_remedy(world_size: int) -> None:
    """C54: plain torch says that an operator has no sharding strategy."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    sharded = distribute_tensor(torch.arange(2.0 * world_size), mesh, [Shard(0)])
    exchange = Exchange(Ring, RawDDPAdapter())
    for tree in (sharded, {"x": sharded}):
        with pytest.raises(ArgumentError, match=r"a DTensor .* exchange x\.to_local\(\)"):
            exchange.shift(tree)
    assert exchange.stats()["exchanges"] == 0
    first = 2.0 * ((exchange.rank - 1) % world_size)
    assert exchange.shift(sharded.to_local()).tolist() == [first, first + 1]
