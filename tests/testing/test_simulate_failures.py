"""What a simulated world says, where real ranks would only wait."""

import _thread
import re
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from collectives.errors import ArgumentError, ExchangeClosed, ExchangeMismatch
from collectives.signature import Signature
from collectives.testing import SimulatedAdapter, Simulation, simulate


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


def signature(
    op: str = "shift", *, phase: str = "forward", grad: str = "grad", sequence: int = 1
) -> Signature:
    return Signature(
        op=op, name="", topology="Ring(3)", phase=phase, grad=grad, step=(),
        tensors="float32[1]", sequence=sequence,
    )  # fmt: skip


def ring_step(adapter: SimulatedAdapter, of: Signature | None = None, tag: int = 0) -> None:
    """Pass a tensor on to the right, by hand, as part of the exchange ``of``."""
    rank, size, transport = adapter.rank, adapter.size, adapter.transport
    transport.announce(of)
    arrived, block = torch.empty(1), torch.ones(1)
    recv = transport.recv([arrived], (rank - 1) % size, tag)
    send = transport.send([block], (rank + 1) % size, tag)
    recv.wait()
    send.wait()
    transport.announce(None)


def report_of(size: int, program: Callable[[SimulatedAdapter], object]) -> str:
    with pytest.raises(ExchangeMismatch) as caught:
        simulate(size, program)
    return str(caught.value)


def test_blocking_sends_around_a_ring_deadlock_unless_buffered() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        tensor = torch.ones(1)
        adapter.transport.send([tensor], (adapter.rank + 1) % adapter.size, 5).wait()
        adapter.transport.recv([tensor], (adapter.rank - 1) % adapter.size, 5).wait()

    report = report_of(3, program)
    assert "no rank can go on: 3 of 3 ranks wait" in report
    assert "rank 2 of 3 waits for rank 0 in send of float32[1] with tag 5" in report
    simulate(3, program, buffered=True)


def test_a_rank_that_ended_early_is_named_with_how_far_it_came() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        ring_step(adapter, signature())
        if adapter.rank:
            ring_step(adapter, signature(sequence=2), tag=2)

    report = report_of(3, program)
    assert f"rank 1 of 3 waits for rank 0 in {signature(sequence=2)}" in report
    assert "rank 0 ended (after 1 exchange)" in report


def test_a_wrong_tag_shows_the_message_that_found_no_other_end() -> None:
    report = report_of(2, lambda adapter: ring_step(adapter, tag=adapter.rank))
    assert "rank 0 of 2 waits for rank 1 in recv of float32[1] with tag 0" in report
    assert "unmatched: rank 1's send of float32[1] with tag 1 to rank 0" in report


def test_the_fields_that_differ_are_named_and_both_grad_modes() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        grad = "no_grad" if adapter.rank == 1 else "grad"
        ring_step(adapter, signature(grad=grad), tag=len(grad))

    report = report_of(3, program)
    assert "rank 0 / rank 1 differ in grad: grad / no_grad" in report
    assert "rank 0 exchanges under grad, rank 1 under no_grad: use one grad mode" in report


def test_two_exchanges_in_another_order_are_named() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        order = ["shift", "permute"] if adapter.rank else ["permute", "shift"]
        for sequence, op in enumerate(order):
            ring_step(adapter, signature(op, sequence=sequence), tag=10 * sequence + len(op))

    assert "rank 0 / rank 2 differ in op: permute / shift" in report_of(3, program)


def _without_backward(then: Callable[[SimulatedAdapter], None]) -> str:
    """Return the report where rank 0 leaves out the backward of exchange #4 and does ``then``."""

    def program(adapter: SimulatedAdapter) -> None:
        ring_step(adapter, signature(sequence=4))
        if adapter.rank:
            ring_step(adapter, signature(sequence=4, phase="backward"), tag=4)
        then(adapter)

    return report_of(2, program)


NEVER_RAN = (
    "rank 0 never ran the backward of exchange #4: did its loss reach it? "
    "loss = exchange.join(loss)"
)


def test_a_backward_that_an_ended_rank_never_ran_is_named_with_its_remedy() -> None:
    assert NEVER_RAN in _without_backward(lambda _: None)


@pytest.mark.parametrize(
    "later", [signature(sequence=3, phase="backward"), signature(sequence=5)], ids=str
)
def test_a_backward_that_a_rank_has_gone_past_is_named(later: Signature) -> None:
    assert NEVER_RAN in _without_backward(lambda adapter: ring_step(adapter, later, tag=9))


def test_a_backward_that_a_rank_may_still_reach_is_not_blamed() -> None:
    behind = signature(sequence=5, phase="backward")
    assert NEVER_RAN not in _without_backward(lambda adapter: ring_step(adapter, behind, tag=9))


def test_the_report_of_a_large_world_begins_with_the_ranks_next_to_the_cause() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        for sequence in range(50):
            if (adapter.rank, sequence) != (100, 10):
                ring_step(adapter, signature(sequence=sequence), tag=sequence)

    lines = report_of(256, program).splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["99", "100", "101"]
    assert lines[1].startswith("  rank 99 of 256 waits for rank 100 in exchange #10 ")
    assert len(lines) < 40


@pytest.mark.parametrize("other", [torch.ones(2), torch.ones(1, dtype=torch.float64)], ids=str)
def test_two_ends_that_do_not_fit_are_both_named(other: torch.Tensor) -> None:
    def program(adapter: SimulatedAdapter) -> None:
        if adapter.rank == 0:
            adapter.transport.send([torch.ones(1)], 1, 3).wait()
        else:
            adapter.transport.recv([other], 0, 3).wait()

    report = report_of(2, program)
    assert "rank 0's send of float32[1] with tag 3 to rank 1" in report
    assert re.search(r"rank 1's recv of float\d\d\[\d\] with tag 3 from rank 0", report)


def test_without_tags_messages_of_two_exchanges_do_not_fit() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        ring_step(adapter, signature("permute" if adapter.rank else "shift"))

    with pytest.raises(ExchangeMismatch, match="differ in op: permute / shift"):
        Simulation(2, tags=False).run(program)


def test_messages_left_over_at_the_end_are_listed() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        if adapter.rank == 0:
            adapter.transport.send([torch.ones(1)], 1, 7)
            adapter.transport.recv([torch.ones(2)], 1, 8)

    report = report_of(2, program)
    assert "got only one of 2" in report
    assert "rank 0's send of float32[1] with tag 7 to rank 1" in report
    assert "rank 0's recv of float32[2] with tag 8 from rank 1" in report


@pytest.mark.parametrize("peer", [-1, 2])
def test_a_peer_outside_the_world_is_refused(peer: int) -> None:
    with pytest.raises(ArgumentError, match=f"expected a rank below 2, got {peer}"):
        simulate(2, lambda adapter: adapter.transport.send([torch.ones(1)], peer, 0))


@pytest.mark.parametrize("tensor", [torch.ones(4)[::2], torch.ones(2, device="meta")], ids=str)
def test_a_tensor_that_is_no_memory_in_a_row_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match="expected a contiguous tensor on the CPU"):
        simulate(2, lambda adapter: adapter.transport.recv([tensor], 1 - adapter.rank, 0))


def test_the_first_exception_is_raised_and_the_other_ranks_are_ended() -> None:
    unwound: list[int] = []

    def program(adapter: SimulatedAdapter) -> None:
        try:
            ring_step(adapter)
            if adapter.rank == 2:
                raise KeyError("mine")
            ring_step(adapter)
        finally:
            unwound.append(adapter.rank)

    with pytest.raises(KeyError, match="mine") as caught:
        simulate(5, program)
    assert sorted(unwound) == [0, 1, 2, 3, 4]
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["left the function of rank 2 of 5 in the simulator"]


def test_a_rank_is_ended_also_inside_a_backward() -> None:
    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx, adapter, x):  # type: ignore[no-untyped-def]
            ctx.adapter = adapter
            return x * 1

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            ring_step(ctx.adapter)
            return None, grad

    def program(adapter: SimulatedAdapter) -> None:
        x = torch.ones(1, requires_grad=True)
        if adapter.rank == 2:
            raise ValueError("no backward here")
        Wait.apply(adapter, x).backward()  # type: ignore[no-untyped-call]

    with pytest.raises(ValueError, match="no backward here"):
        simulate(3, program)


def test_a_report_is_raised_in_every_waiting_rank_and_may_be_handled_there() -> None:
    def program(adapter: SimulatedAdapter) -> str:
        if adapter.rank == 0:
            return "ended"
        with pytest.raises(ExchangeMismatch, match="no rank can go on"):
            ring_step(adapter)
        with pytest.raises(ExchangeMismatch, match="no rank can go on"):
            ring_step(adapter)  # the world stays closed
        return "handled"

    assert simulate(3, program) == ["ended", "handled", "handled"]


def test_a_report_that_one_rank_does_not_handle_is_raised_after_the_others_have() -> None:
    handled: list[int] = []

    def program(adapter: SimulatedAdapter) -> None:
        try:
            ring_step(adapter, tag=adapter.rank)
        except ExchangeMismatch:
            if adapter.rank == 0:
                raise
            handled.append(adapter.rank)

    assert "3 of 3 ranks wait" in report_of(3, program)
    assert handled == [1, 2]


def test_ctrl_c_ends_ranks_that_wait_and_one_that_computes_for_ever() -> None:
    def program(adapter: SimulatedAdapter) -> None:
        if adapter.rank == 0:
            ring_step(adapter)
        _thread.interrupt_main()
        while True:
            pass

    with pytest.raises(KeyboardInterrupt):
        simulate(3, program)


def test_a_thread_that_cannot_be_started_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def start_two(thread: threading.Thread) -> None:
        if thread.name.endswith("2"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        simulate(4, ring_step)


def test_a_message_after_the_end_is_refused() -> None:
    (adapter, _) = simulate(2, lambda adapter: adapter)
    assert not adapter.transport.alive()
    with pytest.raises(ExchangeClosed, match="inside the simulated function only"):
        ring_step(adapter)
