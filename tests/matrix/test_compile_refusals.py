"""What cannot stand in compiled code says so, in our words, and what to do instead."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    ContextError,
    ExchangeClosed,
    ExchangeMismatch,
    TopologyError,
)
from collectives.nn import HaloConv1d
from tests.support.compiling import compiled, leaf, run_apart

pytestmark = pytest.mark.cell("torch.compile, fullgraph", "raw")
slow = pytest.mark.matrix


@dataclasses.dataclass
class Two:
    a: Tensor
    b: Tensor


Step = Callable[[Exchange, Tensor], object]

# Refused where the graph must be whole; elsewhere it ends there, and eager mode goes on.
BEYOND: dict[str, tuple[Step, str]] = {
    "out": (lambda e, x: e.shift(x, out=torch.empty(2)), r"shift: out= .* leave it out"),
    "discover": (lambda e, x: e.permute(x, [], shapes="once"), r"permute: shapes='once'.*like="),
    "gather": (lambda e, x: e.all_gather(x), r"all_gather: shapes='discover'.*shapes='same'"),
    "start": (lambda e, x: e.start_shift(x).wait(), r"start_shift cannot stand in compiled code"),
    "fold": (lambda e, x: e.ring_fold(lambda _, b: b.sum(), x), r"ring_fold cannot stand in"),
    "halo": (
        lambda e, x: e.halo_exchange(x, {0: "ring"}),
        r"halo_exchange: shapes='once' .*shapes='same'",
    ),
    "step": (lambda e, x: (e.mark_step(1), e.shift(x))[1], r"mark_step cannot .* outside of the"),
    "tree": (lambda e, x: e.shift({"a": Two(x, x)})["a"].b, r"tuples, lists, dicts.*, got Two"),
}

# Refused everywhere, and by the same class as in eager mode.
WRONG: dict[str, tuple[Step, type[CollectivesError], str]] = {
    "axis": (lambda e, x: e.shift(x, axis="y"), TopologyError, r"axis must be 'ring'"),
    "timeout": (
        lambda e, x: e.shift(x, timeout=-1.0),
        ArgumentError,
        r"timeout must be a positive",
    ),
    "pairs": (lambda e, x: e.permute(x, [(0, 1)]), ArgumentError, r"ranks in 0\.\.0, got \(0, 1\)"),
    "fill": (
        lambda e, x: e.permute(x.int(), [], fill=1e30),
        ArgumentError,
        r"does not go into a tensor of",
    ),
    "loss": (lambda e, x: e.join(x.int()), ArgumentError, r"join: expected a floating-point"),
    "leaf": (lambda e, x: e.shift([x, 3]), ArgumentError, r"got int"),
    "op": (lambda e, x: e.all_reduce(x, "min"), ArgumentError, r"op must be 'sum'"),  # type: ignore[arg-type]
    "source": (lambda e, x: e.broadcast(x, 3), ArgumentError, r"source must be in 0\.\.0, got 3"),
}


@pytest.mark.parametrize(
    "name", ["out", *(pytest.param(n, marks=slow) for n in BEYOND if n != "out")]
)
def test_what_is_beyond_a_graph_ends_it_or_is_refused(exchange: Exchange, name: str) -> None:
    step, text = BEYOND[name]
    x = torch.tensor([1.0, 2.0])
    with torch.no_grad():
        with pytest.raises(ArgumentError, match=text):
            compiled(lambda x: step(exchange, x), "eager")(x)
        if name == "tree":
            return  # torch cannot go on after a dataclass either
        found = torch.compile(lambda x: step(exchange, x), backend="eager")(x)
        assert torch.equal(found, step(exchange, x))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("fullgraph", [True, pytest.param(False, marks=slow)])
def test_what_is_wrong_is_the_same_error_as_in_eager_mode(
    exchange: Exchange, name: str, fullgraph: bool
) -> None:
    step, kind, text = WRONG[name]

    def call(x: Tensor) -> object:
        return step(exchange, x)

    function = torch.compile(call, backend="eager", fullgraph=fullgraph)
    with pytest.raises(kind, match=text):
        call(torch.zeros(2))
    with pytest.raises(kind, match=text):
        function(torch.zeros(2))


@slow
def test_transforms_and_forward_mode_are_refused(exchange: Exchange) -> None:
    def step(x: Tensor) -> Tensor:
        return exchange.shift(x * x).sum()

    x = torch.ones(2)
    with pytest.raises(ArgumentError, match=r"torch\.func .* leave the transformed function to"):
        compiled(torch.func.grad(step), "eager")(x)
    with forward_ad.dual_level(), pytest.raises(ArgumentError, match="no forward mode"):
        compiled(step, "aot_eager")(forward_ad.make_dual(x, x))


@slow
def test_a_layer_on_a_field_in_shards_is_refused_by_its_name(exchange: Exchange) -> None:
    layer = HaloConv1d(1, 1, 3, exchange=exchange, dims={2: "ring"})
    with pytest.raises(ArgumentError, match=r"HaloConv1d\(.* cannot stand in compiled code"):
        compiled(layer, "eager")(torch.ones(1, 1, 4))


def test_the_first_use_and_the_end_of_an_exchange_in_compiled_code(exchange: Exchange) -> None:
    x = torch.ones(2)
    function = compiled(lambda x: exchange.shift(x, exchange.size) + exchange.rank, "eager")
    assert torch.equal(function(x), x)
    exchange.close()
    with pytest.raises(ExchangeClosed, match="was closed; make a new one"):
        function(x)


def test_a_context_that_is_too_early_is_said_while_the_code_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    early = Exchange(Ring, RawDDPAdapter())
    with pytest.raises(ContextError, match="2 processes"):
        compiled(early.shift, "eager")(torch.ones(2))


OFFSETS = (3, 1)  # of ranks 0 and 1


def mismatch(verify: str) -> str:
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20, verify=verify)  # type: ignore[arg-type]
    offset = OFFSETS[exchange.rank]
    with pytest.raises(ExchangeMismatch) as caught:
        compiled(lambda x: exchange.shift(x, offset), "aot_eager")(leaf(exchange.rank, 3))
    return str(caught.value)


@slow
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_a_mismatch_inside_a_graph_names_operation_and_line(rank_pool: Any, verify: str) -> None:
    for text, offset in zip(rank_pool.run(mismatch, verify, size=2), OFFSETS, strict=True):
        assert f"shift(offset={offset}, axis='ring')" in text
        assert "test_compile_refusals.py:" in text


def mismatch_in_backward() -> str:
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20)
    y = compiled(lambda x: exchange.shift(x) * 2, "aot_eager")(leaf(exchange.rank, 3))
    next_thing = (lambda: exchange.shift(y.detach())) if exchange.rank == 0 else y.sum().backward
    with pytest.raises(ExchangeMismatch) as caught:
        next_thing()
    return str(caught.value)


@slow
def test_a_rank_that_leaves_out_the_backward_of_a_graph(rank_pool: Any) -> None:
    for text in rank_pool.run(mismatch_in_backward, size=2):
        assert re.search("phase: (backward / forward|forward / backward)", text)


WITHOUT_COMPILER = """
import torch
from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
exchange = Exchange(Ring, RawDDPAdapter())
torch.compile(lambda x: exchange.shift(x.sin()) * 2, fullgraph=True)(torch.ones(8))
"""


@slow
def test_without_a_cpp_compiler_inductor_names_it_and_another_backend_does(tmp_path: Path) -> None:
    compiler = str(tmp_path / "none")
    done = run_apart(tmp_path, WITHOUT_COMPILER, status=1, CXX=compiler)
    assert "InvalidCxxCompiler" in done.stderr or "C++ compiler" in done.stderr
    without = WITHOUT_COMPILER.replace("fullgraph=True", "fullgraph=True, backend='aot_eager'")
    run_apart(tmp_path, without, CXX=compiler)
