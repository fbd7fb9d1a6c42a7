"""What simulated ranks do: values, order, modes. What they say when it goes wrong: see beside."""

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from collectives.errors import ArgumentError
from collectives.testing import SimulatedAdapter, Simulation, Traffic, simulate
from collectives.transport import Post, Transport

SIZES = [2, 3, 5, 256]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


def pass_on(adapter: SimulatedAdapter, steps: int = 1, tag: int = 7) -> float:
    """Pass my rank on to the right, ``steps`` times, by hand."""
    transport, right, left = adapter.transport, *_neighbours(adapter)
    block = torch.tensor([float(adapter.rank)])
    for _ in range(steps):
        arrived = torch.empty(1)
        works = [transport.recv([arrived], left, tag), transport.send([block], right, tag)]
        for work in works:
            work.wait()
        block = arrived
    return block.item()


def _neighbours(adapter: SimulatedAdapter) -> tuple[int, int]:
    return (adapter.rank + 1) % adapter.size, (adapter.rank - 1) % adapter.size


def copied_function(adapter: SimulatedAdapter) -> tuple[float, float]:
    """Exchange both ways in the order of the function that people copy (open_clip's)."""
    right, left = _neighbours(adapter)
    to_right, to_left = torch.tensor([adapter.rank + 0.25]), torch.tensor([adapter.rank + 0.75])
    from_right, from_left = torch.empty(1), torch.empty(1)
    assert adapter.transport.batch is not None
    posts = [
        Post("send", to_right, right, 0),
        Post("send", to_left, left, 0),
        Post("recv", from_right, right, 0),
        Post("recv", from_left, left, 0),
    ]
    (work,) = adapter.transport.batch(posts)
    work.wait()
    return from_left.item(), from_right.item()


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_passes_every_block_on(size: int) -> None:
    assert simulate(size, pass_on, 2) == [(rank - 2) % size for rank in range(size)]


@pytest.mark.timeout(20)
def test_a_thousand_ranks_are_no_problem() -> None:
    assert simulate(1024, pass_on, 3) == [(rank - 3) % 1024 for rank in range(1024)]


def test_one_rank_runs_and_may_not_send_to_itself() -> None:
    assert simulate(1, lambda adapter: adapter.size) == [1]
    with pytest.raises(ArgumentError, match=r"expected another rank, got 0 \(rank 0 of 1\)"):
        simulate(1, pass_on)


def test_an_empty_world_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1 rank, got 0"):
        simulate(0, pass_on)


def test_fifty_random_orders_give_equal_results() -> None:
    expected = simulate(5, pass_on, 4)
    assert all(simulate(5, pass_on, 4, seed=seed) == expected for seed in range(50))


def _order(seed: int | None) -> list[int]:
    order: list[int] = []

    def program(adapter: SimulatedAdapter) -> None:
        for _ in range(3):
            order.append(adapter.rank)
            pass_on(adapter)

    simulate(4, program, seed=seed)
    return order


def test_a_seed_gives_its_own_order_again_and_without_one_ranks_take_turns() -> None:
    orders = {seed: _order(seed) for seed in range(10)}
    assert orders == {seed: _order(seed) for seed in range(10)}
    assert len({tuple(order) for order in orders.values()}) > 5
    assert _order(None)[:4] == [0, 1, 2, 3]


def test_exactly_one_rank_runs_at_a_time() -> None:
    running: set[int] = set()

    def program(adapter: SimulatedAdapter) -> None:
        for _ in range(20):
            assert not running
            running.add(adapter.rank)
            torch.randn(100, 100) @ torch.randn(100, 100)
            running.remove(adapter.rank)
            pass_on(adapter)

    simulate(6, program, seed=3)


def _send_and_change(adapter: SimulatedAdapter) -> float:
    """Rank 0 changes what it sends before rank 1 asks for it."""
    tensor = torch.tensor([1.0])
    if adapter.rank == 0:
        work = adapter.transport.send([tensor], 1, 0)
        tensor.fill_(2.0)
    else:
        work = adapter.transport.recv([tensor], 0, 0)
    work.wait()
    return tensor.item()


def test_a_send_reads_its_tensor_when_it_is_received() -> None:
    assert simulate(2, _send_and_change) == [2.0, 2.0]


def test_a_buffered_send_reads_its_tensor_at_once() -> None:
    assert simulate(2, _send_and_change, buffered=True) == [2.0, 1.0]


def test_messages_match_by_tag_in_whatever_order() -> None:
    def program(adapter: SimulatedAdapter) -> list[float]:
        tensors = {tag: torch.full((1,), float(tag)) for tag in (1, 2, 3)}
        if adapter.rank == 0:
            works = [adapter.transport.send([tensors[tag]], 1, tag) for tag in (1, 2, 3)]
        else:
            for tensor in tensors.values():
                tensor.zero_()
            works = [adapter.transport.recv([tensors[tag]], 0, tag) for tag in (3, 1, 2)]
        for work in works:
            work.wait()
        return [tensor.item() for tensor in tensors.values()]

    assert simulate(2, program) == [[1, 2, 3]] * 2


def test_messages_of_one_tag_match_in_order() -> None:
    def program(adapter: SimulatedAdapter) -> list[float]:
        tensors = [torch.tensor([value * (1.0 - adapter.rank)]) for value in (1, 2)]
        post = adapter.transport.recv if adapter.rank else adapter.transport.send
        for work in [post([tensor], 1 - adapter.rank, 0) for tensor in tensors]:
            work.wait()
        return [tensor.item() for tensor in tensors]

    assert simulate(2, program) == [[1, 2], [1, 2]]


def test_without_tags_the_order_of_the_copied_function_swaps_two_ranks_only() -> None:
    def expected(rank: int, size: int) -> tuple[float, float]:
        return (rank - 1) % size + 0.25, (rank + 1) % size + 0.75

    of_two = Simulation(2, tags=False).run(copied_function)
    of_three = Simulation(3, tags=False).run(copied_function)
    assert of_two == [tuple(reversed(expected(rank, 2))) for rank in range(2)]
    assert of_three == [expected(rank, 3) for rank in range(3)]


@pytest.mark.parametrize("size", SIZES)
def test_traffic_counts_messages_and_bytes_of_every_edge(size: int) -> None:
    simulation = Simulation(size)
    simulation.run(pass_on, 3)
    assert simulation.traffic == {
        (rank, (rank + 1) % size): Traffic(messages=3, bytes=12) for rank in range(size)
    }
    assert (simulation.run(lambda adapter: adapter.rank)[-1], simulation.traffic) == (size - 1, {})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 2, dtype=torch.bfloat16),
        torch.randn(4, dtype=torch.complex128),
        torch.tensor([True, False]),
        torch.tensor(-3, dtype=torch.int16),
        torch.empty(0, 5),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_every_dtype_and_shape_arrives_bit_by_bit(tensor: torch.Tensor) -> None:
    def program(adapter: SimulatedAdapter) -> torch.Tensor:
        buffer = tensor if adapter.rank == 0 else torch.zeros_like(tensor)
        post = adapter.transport.recv if adapter.rank else adapter.transport.send
        post([buffer], 1 - adapter.rank, 0).wait()
        return buffer

    assert torch.equal(simulate(2, program)[1], tensor)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_ranks_start_in_the_callers_grad_mode(mode: type[torch.no_grad]) -> None:
    def program(adapter: SimulatedAdapter) -> tuple[bool, bool]:
        pass_on(adapter, 2)  # in inference mode this receives into inference tensors
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with mode():
        here = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        assert simulate(3, program) == [here] * 3


def test_a_rank_may_change_its_grad_mode_without_changing_others() -> None:
    def program(adapter: SimulatedAdapter) -> bool:
        torch.set_grad_enabled(adapter.rank == 1)
        pass_on(adapter)
        return torch.is_grad_enabled()

    assert simulate(3, program) == [False, True, False]
    assert torch.is_grad_enabled()


def test_the_intra_op_threads_are_shared_out_and_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert simulate(2, lambda _: torch.get_num_threads()) == [2, 2]
        assert simulate(8, lambda _: torch.get_num_threads()) == [1] * 8
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_a_backward_runs_inside_a_rank() -> None:
    class PassOn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, adapter, x):  # type: ignore[no-untyped-def]
            ctx.adapter = adapter
            return x + pass_on(adapter)

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return None, grad * pass_on(ctx.adapter)

    def program(adapter: SimulatedAdapter) -> float:
        x = torch.ones(2, requires_grad=True)
        PassOn.apply(adapter, x).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad[0].item()

    assert simulate(5, program, seed=1) == [4, 0, 1, 2, 3]


def test_a_recursion_without_end_is_an_error_and_not_a_crash() -> None:
    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self(x)
            return result

    def program(adapter: SimulatedAdapter) -> None:
        Endless()(torch.ones(adapter.size))

    with pytest.raises(RecursionError):
        simulate(2, program)


def test_a_rank_can_simulate_a_world_of_its_own() -> None:
    assert simulate(2, lambda _: simulate(3, pass_on)) == [[2, 0, 1], [2, 0, 1]]


def test_the_adapter_tells_where_its_rank_stands() -> None:
    def program(adapter: SimulatedAdapter) -> tuple[object, ...]:
        context = adapter.context()
        assert context.transport is adapter.context().transport is adapter.transport
        transport: Transport = adapter.transport
        assert (transport.rank, transport.size, transport.batch) == (adapter.rank, 3, None)
        return (
            context.rank, context.size, context.local_rank, context.node_rank,
            context.device.type, context.group, context.source,
        )  # fmt: skip

    expected = [(rank, 3, rank, 0, "cpu", None, "simulation") for rank in range(3)]
    assert simulate(3, program) == expected


def test_a_copied_adapter_talks_over_the_same_wire() -> None:
    assert simulate(3, lambda adapter: pass_on(copy.deepcopy(adapter))) == [2, 0, 1]


def test_the_simulator_needs_no_test_framework() -> None:
    without = "import sys; sys.modules.update(pytest=None, cloudpickle=None)"
    use = "from collectives.testing import simulate; print(simulate(2, lambda a: a.rank))"
    shown = subprocess.check_output([sys.executable, "-c", f"{without}; {use}"], timeout=100)
    assert shown.split() == [b"[0,", b"1]"]
