"""``shapes="discover"``: what arrives is as its sender made it, and gradients find their way."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Graph, Mesh, Received, Ring
from collectives.errors import ArgumentError, ExchangeMismatch, ExchangeTimeout
from collectives.testing import Simulation, check_adjoint
from collectives.testing.pool import RankPool
from tests.support.untold import Untold
from tests.support.worlds import SIZES, World

EACH_SIZE = pytest.mark.parametrize("size", SIZES)


def rows(rank: int) -> Tensor:
    """Return what rank sends: none, one or more rows."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(3 * rank % 5, 2, dtype=torch.float64, generator=generator)


def score(rank: int, blocks: list[Tensor]) -> Tensor:
    """Return a loss that weighs each block that comes round the ring."""
    mine = blocks[0]
    terms = [(k + rank + 1) * block.sin().sum() * mine.sum() for k, block in enumerate(blocks)]
    return torch.stack(terms).sum()


def round_the_ring(adapter: Adapter) -> tuple[list[list[float]], list[float]]:
    """Pass uneven rows all the way round; return the blocks and the gradient of my rows."""
    exchange = Exchange(Ring, adapter)
    mine = rows(exchange.rank).requires_grad_()
    blocks = [mine]
    for hop in range(exchange.size - 1):
        if hop % 2:
            block = exchange.start_shift(blocks[-1], shapes="discover").wait()
        else:
            block = exchange.shift(blocks[-1], shapes="discover")
        blocks.append(block)
    exchange.join(score(exchange.rank, blocks)).backward()
    assert mine.grad is not None
    return [b.flatten().tolist() for b in blocks], mine.grad.flatten().tolist()


@EACH_SIZE
def test_uneven_rows_go_round_a_ring_with_the_gradient_of_one_process(
    world: World, size: int
) -> None:
    all_rows = [rows(rank).requires_grad_() for rank in range(size)]
    sums = [
        score(rank, [all_rows[(rank - hop) % size] for hop in range(size)]) for rank in range(size)
    ]
    torch.stack(sums).sum().backward()
    for rank, (blocks, grad) in enumerate(world(round_the_ring, size)):
        assert blocks == [all_rows[(rank - hop) % size].flatten().tolist() for hop in range(size)]
        expected = all_rows[rank].grad
        assert expected is not None
        assert grad == pytest.approx(expected.flatten().tolist(), rel=1e-12)


def adjoints(adapter: Adapter, verify: str) -> float:
    exchange = Exchange(Ring, adapter, verify=verify)  # type: ignore[arg-type]
    rank, size = exchange.rank, exchange.size
    x, y = rows(rank + 1), rows(rank + 2).to(torch.complex128)
    pairs = [(r, size - 1 - r) for r in range(size)]
    line = Exchange(lambda n: Ring(n, periodic=False), adapter, verify=verify)  # type: ignore[arg-type]
    errors = [
        check_adjoint(exchange, lambda x: exchange.shift(x, 2, shapes="discover"), x),
        check_adjoint(exchange, lambda x: exchange.permute([x, x], pairs, shapes="discover"), x),
        check_adjoint(
            exchange,
            lambda x, y: exchange.exchange(to_left=[x], to_right=(y, x), shapes="discover"),
            x,
            y,
        ),
        check_adjoint(line, lambda x: line.start_shift({"x": x}, -1, shapes="discover").wait(), x),
    ]
    return max(errors)


@EACH_SIZE
@pytest.mark.parametrize("verify", ["auto", "always", "off"])
def test_the_backward_is_the_adjoint(world: World, size: int, verify: str) -> None:
    assert max(world(adjoints, size, verify)) <= 1e-12


def all_kinds(adapter: Adapter) -> None:
    """Other dtypes, other dims, no element, no dim; in trees, on both sides."""
    exchange = Exchange(Ring, adapter)
    rank, size = exchange.rank, exchange.size
    left, right = (rank - 1) % size, (rank + 1) % size
    dtypes = [torch.float64, torch.int32, torch.bool, torch.complex64, torch.bfloat16]

    def make(rank: int, side: int) -> list[Tensor]:
        dtype = dtypes[(rank + side) % len(dtypes)]
        return [
            torch.full((rank + side,) * (rank % 3), rank, dtype=dtype),
            torch.full((side, rank % 2, 2), rank, dtype=dtype),
        ]

    received = exchange.exchange(
        to_left={"a": make(rank, 0)}, to_right=tuple(make(rank, 1)), shapes="discover"
    )
    for arrived, expected in (
        (list(received.from_left), make(left, 1)),
        (received.from_right["a"], make(right, 0)),
    ):
        for x, y in zip(arrived, expected, strict=True):
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            assert torch.equal(x.detach(), y)


@EACH_SIZE
@pytest.mark.parametrize("grad", [True, False])
def test_dtypes_dims_and_empty_tensors_are_those_of_the_sender(
    world: World, size: int, grad: bool
) -> None:
    def program(adapter: Adapter) -> None:
        with torch.set_grad_enabled(grad):
            all_kinds(adapter)

    world(program, size)


def floats_among_ints(adapter: Adapter) -> float | None:
    """Only rank 0 sends what can have a gradient; the third rank of a ring never sees it."""
    exchange = Exchange(Ring, adapter, verify="always")
    rank, size = exchange.rank, exchange.size
    mine = torch.ones(2, requires_grad=True) if rank == 0 else torch.ones(3, dtype=torch.int64)
    arrived = exchange.shift(mine, shapes="discover")
    assert arrived.shape == ((2,) if (rank - 1) % size == 0 else (3,))
    if arrived.requires_grad:
        exchange.join((arrived * (rank + 1)).sum()).backward()
    elif mine.requires_grad:
        exchange.join(mine.sum() * 0).backward()
    return None if mine.grad is None else mine.grad[0].item()


@EACH_SIZE
def test_a_gradient_flows_where_only_some_ranks_send_floats(world: World, size: int) -> None:
    grads = world(floats_among_ints, size)
    assert grads == [1 % size + 1, *[None] * (size - 1)]


def on_a_mesh(adapter: Adapter) -> None:
    size = adapter.context().size
    mesh = Exchange(Mesh((1, size), axes=("y", "x")), adapter)
    for axis, offset in (("x", 1), ("x", -2), ("y", 1)):
        mine = torch.full((mesh.rank + 1,), mesh.rank)
        arrived = mesh.shift(mine, offset, axis=axis, fill=7, shapes="discover")
        source, _ = Mesh((1, size), axes=("y", "x")).shift(mesh.rank, axis, offset)
        expected = torch.full_like(mine, 7) if source is None else torch.full((source + 1,), source)
        assert torch.equal(arrived, expected)


@EACH_SIZE
def test_beyond_an_open_end_lies_what_this_rank_sends_filled(world: World, size: int) -> None:
    world(on_a_mesh, size)


def on_a_graph(adapter: Adapter) -> bool:
    exchange = Exchange(lambda n: Graph(n, [(0, n - 1)]), adapter)
    mine = torch.arange(exchange.rank + 1)
    pairs = [(0, exchange.size - 1)]
    arrived = exchange.permute(mine, pairs, fill=-1, shapes="discover")
    if exchange.rank == exchange.size - 1:
        return torch.equal(arrived, torch.zeros(1, dtype=torch.int64))
    return torch.equal(arrived, torch.full_like(mine, -1))


@EACH_SIZE
def test_only_the_pairs_of_a_permutation_speak(world: World, size: int) -> None:
    assert all(world(on_a_graph, size))


@pytest.mark.parametrize("size", [2, 3])
def test_shapes_are_discovered_where_nobody_knows_what_messages_belong_to(size: int) -> None:
    Simulation(size, tags=False, seed=3).run(lambda adapter: all_kinds(Untold(adapter)))
    results = Simulation(size, tags=False).run(lambda a: round_the_ring(Untold(a)))
    assert results == Simulation(size).run(round_the_ring)


def stands_once(adapter: Adapter) -> tuple[float, int, int]:
    exchange = Exchange(Ring, adapter)
    with torch.no_grad():
        for _ in range(3):
            exchange.shift(rows(exchange.rank), shapes="discover")
    binding = exchange._binding
    assert binding is not None
    state = binding.engine.state
    payloads = [trace for trace in state.history if not trace.call.discovers]
    return exchange.stats()["exchanges"], state.sequence, len(payloads)


@EACH_SIZE
def test_a_discovery_is_one_exchange_in_counters_numbers_and_history(
    world: World, size: int
) -> None:
    assert world(stands_once, size) == [(3, 3, 3)] * size


def other_counts(adapter: Adapter, counts: tuple[int, int]) -> str:
    exchange = Exchange(Ring, adapter, timeout=30)
    begun = time.monotonic()
    with pytest.raises(ExchangeMismatch) as caught:
        exchange.shift([torch.ones(2)] * counts[exchange.rank], shapes="discover")
    assert time.monotonic() - begun < 3
    return str(caught.value)


@pytest.mark.parametrize("counts", [(1, 2), (3, 1), (0, 1)])
def test_another_number_of_tensors_is_found_on_both_ends(
    world: World, rank_pool: RankPool, counts: tuple[int, int]
) -> None:
    texts = world(other_counts, 2, counts)
    if world.name == "gloo":
        rank_pool.discard()
    for text, theirs in zip(texts, counts[::-1], strict=True):
        assert "tensors: what it awaits is not what is sent here" in text
        assert f"what it sends ({theirs} tensor{'' if theirs == 1 else 's'}) is not" in text


@EACH_SIZE
def test_a_size_that_is_given_and_asked_for_is_refused(world: World, size: int) -> None:
    def program(adapter: Adapter) -> None:
        exchange = Exchange(Ring, adapter)
        x = torch.ones(2)
        pair = Received(torch.empty(2), torch.empty(2))
        for act in (
            lambda: exchange.shift(x, like=x, shapes="discover"),
            lambda: exchange.start_shift(x, out=torch.empty(2), shapes="discover"),
            lambda: exchange.exchange(to_left=x, to_right=x, out=pair, shapes="discover"),
            lambda: exchange.permute(x, [], like=x, shapes="discover"),
        ):
            with pytest.raises(ArgumentError, match="leave one of them out"):
                act()
        with pytest.raises(ArgumentError, match="at most 10000 tensors"):
            exchange.shift([x] * 10_001, shapes="discover")
        with pytest.raises(ArgumentError, match="does not go into a tensor"):
            exchange.shift(x.int(), fill=0.5j, shapes="discover")  # type: ignore[arg-type]
        assert exchange.shift(x, shapes="discover").sum() == 2  # nothing was left on the wire

    world(program, size)


@pytest.mark.parametrize(
    ("garbage", "text"),
    [
        (b"\xff\x00", "no dtype of number 255"),
        (b"\x00\x01" + b"\xff" * 8, "larger than any memory"),
        (b"\x00" * 18, "too long"),
        (b"\x00", "too short"),
    ],
    ids=["dtype", "dim", "long", "short"],
)
def test_a_description_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, garbage: bytes, text: str
) -> None:
    monkeypatch.setattr("collectives.discover.encode", lambda leaves: garbage)

    def program(adapter: Adapter) -> str:
        exchange = Exchange(Ring, adapter)
        with pytest.raises(ExchangeMismatch) as caught:
            exchange.shift(torch.ones(2, 3), shapes="discover")
        return str(caught.value)

    for rank, error in enumerate(Simulation(2).run(program)):
        assert f"what rank {1 - rank} says of its tensors makes no sense" in error
        assert text in error


def test_a_peer_that_does_not_come_ends_at_the_deadline(rank_pool: RankPool) -> None:
    def program() -> tuple[str, float]:
        exchange = Exchange(Ring, RawDDPAdapter())
        exchange.shift(torch.ones(1))
        begun = time.monotonic()
        if exchange.rank == 0:
            with pytest.raises(ExchangeTimeout) as caught:
                exchange.shift(torch.ones(2), shapes="discover", timeout=1)
            return str(caught.value), time.monotonic() - begun
        return "", 0.0

    (text, seconds), _ = rank_pool.run(program, size=2)
    rank_pool.discard()
    assert text.startswith(
        "exchange #2 shift(offset=1, axis='ring') (discovery, no gradient, shapes"
    )
    assert "failed after 1." in text
    assert "got no answer from rank 1" in text
    assert 1 <= seconds < 4
