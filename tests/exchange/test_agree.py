"""Headers: ranks in different exchanges know before anything of the payload is posted."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.errors import ExchangeError, ExchangeMismatch
from collectives.testing import Simulation, check_adjoint
from collectives.testing.pool import RankPool
from tests.support.untold import Untold
from tests.support.worlds import SIZES, World

ONES = torch.ones(2)
TIMEOUT = 30.0  # never waited for: a mismatch takes a round trip
Act = Callable[[Adapter, bool], object]


def always(adapter: Adapter, *, topology: object = Ring, name: str = "") -> Exchange:
    return Exchange(topology, adapter, name=name, timeout=TIMEOUT, verify="always")  # type: ignore[arg-type]


def other_number(adapter: Adapter, odd: bool) -> object:
    exchange = always(adapter)
    if odd:
        exchange.permute(ONES, [(exchange.rank, exchange.rank)])  # a copy, but an exchange
    return exchange.shift(ONES)


def other_phase(adapter: Adapter, odd: bool) -> object:
    exchange = always(adapter)
    arrived = exchange.shift(torch.ones(2, requires_grad=True))
    return exchange.shift(arrived) if odd else arrived.sum().backward()


def other_grad_mode(adapter: Adapter, odd: bool) -> object:
    with torch.set_grad_enabled(not odd):
        return always(adapter).shift(ONES)


def other_step(adapter: Adapter, odd: bool) -> object:
    exchange = always(adapter)
    exchange.mark_step(1, 2 + odd)
    return exchange.shift(ONES)


def other_topology(adapter: Adapter, odd: bool) -> object:
    always(adapter).shift(ONES)  # whose hello would find it
    return always(adapter, topology=lambda n: Ring(n, periodic=odd)).shift(ONES)


def other_side(adapter: Adapter, odd: bool) -> object:
    return always(adapter).exchange(to_left=None if odd else ONES, to_right=ONES)


def sending(tensor: torch.Tensor | list[torch.Tensor]) -> Act:
    """Every rank sends two ones, but for the odd one."""

    def act(adapter: Adapter, odd: bool) -> object:
        usual: object = [ONES] if isinstance(tensor, list) else ONES
        return always(adapter).shift(tensor if odd else usual)

    return act


MISMATCHES: dict[str, tuple[Act, str]] = {
    "number": (other_number, "number: #"),
    "operation": (lambda a, odd: always(a).shift(ONES, -1 if odd else 1), "operation"),
    "name": (lambda a, odd: always(a, name="kv" if odd else "q").shift(ONES), "name"),
    "topology": (other_topology, "topology"),
    "phase": (other_phase, "phase: "),
    "grad mode": (other_grad_mode, "grad: "),
    "step": (other_step, "step"),
    "dtype": (sending(ONES.int()), "tensors: "),
    "shape of the same bytes": (sending(torch.ones(1, 2)), "tensors: "),
    "longer": (sending(torch.ones(3)), "tensors: "),
    "empty": (sending(torch.ones(0)), "tensors: "),
    "more tensors": (sending([ONES, ONES]), "tensors: "),
    "no tensors": (sending([]), "tensors: "),
    "nothing on one side": (other_side, "tensors: "),
    "shapes asked for": (
        lambda a, odd: always(a).shift(ONES, shapes="discover" if odd else "same"),
        "shapes: ",
    ),
}  # fmt: skip


def found(adapter: Adapter, kind: str) -> tuple[str, float]:
    """Return the error of one rank, and how long it took."""
    act, _ = MISMATCHES[kind]
    begun = time.monotonic()
    with pytest.raises(ExchangeMismatch) as caught:
        act(adapter, adapter.context().rank == 1)
    seconds = time.monotonic() - begun
    with pytest.raises(ExchangeError, match="cannot be used any more"):
        Exchange(Ring, adapter).shift(ONES)
    return str(caught.value), seconds


def check_texts(texts: list[str], word: str) -> None:
    size = len(texts)
    for rank, text in enumerate(texts):
        peers = "01"[1 - rank] if size == 2 else "[012]"
        assert word in text, text
        assert text.startswith("exchange #")
        assert f"(rank {rank} of {size})" in text
        assert " is in another exchange" in text
        assert any(f"rank {peer} is at exchange #" in text for peer in (peers.strip("[]")))
        assert "test_agree.py:" in text


@pytest.mark.parametrize(
    ("size", "kind"), [*((2, kind) for kind in MISMATCHES), (3, "operation"), (3, "phase")]
)
def test_over_gloo_every_rank_finds_a_mismatch_within_a_round_trip(
    rank_pool: RankPool, size: int, kind: str
) -> None:
    def program(kind: str) -> tuple[str, float]:
        return found(RawDDPAdapter(), kind)

    results = rank_pool.run(program, kind, size=size)
    rank_pool.discard()
    check_texts([text for text, _ in results], MISMATCHES[kind][1])
    assert max(seconds for _, seconds in results) < TIMEOUT / 10


@pytest.mark.parametrize("kind", MISMATCHES)
@pytest.mark.parametrize("size", [2, 3])
def test_without_tags_every_rank_finds_a_mismatch_and_no_payload_is_posted(
    size: int, kind: str
) -> None:
    simulation = Simulation(size, tags=False)
    results = simulation.run(lambda adapter: found(Untold(adapter), kind))
    check_texts([text for text, _ in results], MISMATCHES[kind][1])
    sent = {traffic.bytes for traffic in simulation.traffic.values()}
    if kind in ("phase", "topology"):  # a shift went before, with its headers and 8 bytes
        assert sent <= {64, 128, 64 + 8, 64 + 8 + 64}
    else:
        assert sent == {64}


def test_the_simulator_still_says_both_signatures_word_by_word() -> None:
    with pytest.raises(ExchangeMismatch, match=r"differ in name: (q / kv|kv / q)"):
        Simulation(2, tags=False).run(
            lambda adapter: always(adapter, name="q" if adapter.rank else "kv").shift(ONES)
        )


def test_a_payload_that_arrives_as_a_header_is_told_from_one() -> None:
    def program(adapter: Adapter) -> str:
        rank = adapter.context().rank
        exchange = Exchange(Ring, Untold(adapter), verify="off" if rank else "always")
        try:
            exchange.shift(torch.zeros(64, dtype=torch.uint8))
        except ExchangeMismatch as error:
            return str(error)
        return ""

    text, _ = Simulation(2, tags=False, seed=1).run(program)
    assert "rank 1 does not agree on it first: what came is no header" in text
    assert "every rank must use the same verify=" in text


def everything(adapter: Adapter, verify: str) -> tuple[list[float], dict[str, float], int]:
    exchange = Exchange(Ring, adapter, verify=verify)  # type: ignore[arg-type]
    x = torch.full((2,), float(exchange.rank), dtype=torch.float64, requires_grad=True)
    y = exchange.shift(x) * exchange.start_shift(x, -1).wait()
    both = exchange.exchange(to_left=[x, x.int()], to_right={"a": x[:1]})
    exchange.shift([torch.ones(0)])
    exchange.exchange(to_left=None, to_right=x)
    exchange.permute(x, [])
    (g,) = torch.autograd.grad(exchange.join((y * both.from_right[0]).sum()), x, create_graph=True)
    exchange.join((g * exchange.rank).sum()).backward()
    assert x.grad is not None
    values = [*y.tolist(), *g.tolist(), *x.grad.tolist()]
    error = check_adjoint(exchange, lambda x: exchange.exchange(to_left=x, to_right=x), x)
    assert error <= 1e-12
    binding = exchange._binding
    assert binding is not None
    counted = {k: v for k, v in exchange.stats().items() if not k.endswith(("seconds", "wait_ms"))}
    return values, counted, len(binding.engine.state.history)


@pytest.mark.parametrize("size", SIZES)
def test_headers_change_neither_values_nor_counters_nor_history(world: World, size: int) -> None:
    assert world(everything, size, "always") == world(everything, size, "off")


@pytest.mark.ranks(1, 3)
def test_tangents_are_agreed_on_too(rank: int, world_size: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), verify="always")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(1), torch.tensor([float(rank)]))
        tangent = forward_ad.unpack_dual(exchange.shift(dual)).tangent
    assert tangent is not None
    assert tangent.item() == (rank - 1) % world_size


@pytest.mark.parametrize("size", SIZES)
def test_where_there_are_no_tags_all_is_right_with_headers_for_what_is_new(size: int) -> None:
    def program(adapter: Adapter) -> tuple[list[float], dict[str, float], int]:
        return everything(Untold(adapter), "auto")

    expected = Simulation(size, tags=False).run(everything, "off")
    assert Simulation(size, tags=False, seed=size).run(program) == expected


def messages(size: int, program: Callable[[Exchange], object], *, told: bool, verify: str) -> int:
    """Return how many messages rank 0 sends to rank 1."""

    def run(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter if told else Untold(adapter), verify=verify)  # type: ignore[arg-type]
        with torch.no_grad():
            program(exchange)

    simulation = Simulation(size, tags=told)
    simulation.run(run)
    return simulation.traffic[0, 1].messages


def test_a_header_goes_where_tags_do_not_say_enough_and_once_for_what_is_new() -> None:
    def thrice(exchange: Exchange) -> None:
        for step in range(3):
            exchange.mark_step(step)
            exchange.shift(ONES)

    assert messages(3, thrice, told=True, verify="auto") == 3
    assert messages(3, thrice, told=True, verify="always") == 6
    assert messages(3, thrice, told=False, verify="auto") == 4
    assert messages(3, thrice, told=False, verify="off") == 3


def test_what_is_new_on_one_rank_and_known_to_its_neighbour_is_agreed_on_by_pairs() -> None:
    """Rank 1 sends and receives the same in both steps; rank 2, whom it does not hear, does not."""

    def uneven(exchange: Exchange) -> None:
        left = (exchange.rank - 1) % 3
        for rows in ((1, 2, 3), (1, 2, 4), (1, 2, 3)):
            arrived = exchange.shift(torch.ones(rows[exchange.rank]), like=torch.empty(rows[left]))
            assert arrived.shape == (rows[left],)

    assert messages(3, uneven, told=False, verify="auto") == 3 + 1


def test_both_ends_forget_what_they_agreed_on_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collectives.agree._MOST_AGREED", 2)

    def many(exchange: Exchange) -> None:
        for rows in (1, 2, 3, 1, 3, 3):
            assert exchange.shift(torch.ones(rows)).shape == (rows,)

    assert messages(2, many, told=False, verify="auto") == 6 + 4
