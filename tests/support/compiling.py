"""Compiling a function afresh, and comparing it with itself in eager mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from collectives import Exchange
from tests.support.launching import environment

__all__ = ["compiled", "graphs", "leaf", "number_of_exchanges", "outcome", "run_apart"]

Function = Callable[..., Any]


def compiled(function: Function, backend: str | Function, **options: Any) -> Function:
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


def leaf(rank: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(17 * rank + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def outcome(function: Function, exchange: Exchange, *inputs: Tensor) -> list[Tensor]:
    """Return what a function gives, and the gradients of its inputs; joined outside of it."""
    mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    result = function(*mine)
    results: Sequence[Tensor] = result if isinstance(result, tuple) else (result,)
    loss = torch.stack([y.double().square().sum() for y in results]).sum()
    exchange.join(loss).backward()
    exchange.check_backward()
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in mine]
    return [*(y.detach() for y in results), *grads]


@contextmanager
def number_of_exchanges(exchange: Exchange, expected: int) -> Iterator[None]:
    before = exchange.stats()["exchanges"]
    yield
    ran = exchange.stats()["exchanges"] - before
    assert ran == expected, f"{ran} exchanges"


def run_apart(
    folder: Path, program: str, *arguments: str, status: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with inductor's cache in that folder."""
    variables["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment(folder, variables),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done
