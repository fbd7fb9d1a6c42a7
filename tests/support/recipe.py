"""One training, told once: the same under every runtime, and in one process as the reference."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from collectives import Exchange, even_steps
from tests.support.nets import Moves, Net, Whole, loss_of, rows_of

__all__ = [
    "Precision",
    "Recipe",
    "Weights",
    "assert_trained",
    "autocast",
    "optimizers",
    "reference",
    "train",
    "weights_of",
]

Weights = dict[str, Tensor]
Precision = Literal["64-true", "32-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed"]

DTYPES = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
    "bf16-mixed": torch.float32,
    "16-mixed": torch.float32,
}


def _go_on(_: Net) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    Args:
        net: Makes the module, which exchanges by what it is given.
        steps: Of the optimizer, in an epoch.
        epochs: Over the same batches.
        accumulate: Batches for each step.
        clip: Largest norm of the gradient; ``None``: any.
        split: One optimizer for the encoder and one for the rest, instead of one for all.
        precision: As Lightning names it.
        ddp: Options of DistributedDataParallel.
        trainer: Options of Lightning's Trainer.
        after_step: Looks at the module after each step, and says whether that was the last.
        longer: Batches that rank 0 has more.
        even: Loop by ``even_steps``.
        timeout: Of the exchange, in seconds.
        resume: Begin from this checkpoint, at the epoch at which it was made.
        save: Make a checkpoint at the end.
    """

    net: Callable[[Moves], Net] = Net
    steps: int = 3
    epochs: int = 1
    accumulate: int = 1
    clip: float | None = None
    split: bool = False
    precision: Precision = "64-true"
    ddp: Mapping[str, bool] = field(default_factory=dict)
    trainer: Mapping[str, object] = field(default_factory=dict)
    after_step: Callable[[Net], bool] = _go_on
    longer: int = 0
    even: bool = False
    timeout: float = 20.0
    resume: Path | None = None
    save: Path | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return DTYPES[self.precision]

    def batches(self, moves: Moves) -> list[Tensor]:
        """Return what is trained on, batch by batch."""
        count = self.steps * self.accumulate
        if not isinstance(moves, Whole) and moves.rank == 0:
            count += self.longer
        return [rows_of(number, moves).to(self.dtype) for number in range(count)]

    def epoch(self, exchange: Exchange) -> Iterable[Tensor]:
        """Return what a rank iterates over in each epoch."""
        batches = self.batches(exchange)
        return even_steps(batches, exchange) if self.even else batches

    def loop(self, exchange: Exchange) -> Iterator[Tensor]:
        """Iterate over all epochs."""
        epoch = self.epoch(exchange)
        for _ in range(self.epochs):
            yield from epoch


def optimizers(net: nn.Module, *, split: bool) -> list[torch.optim.SGD]:
    if not split:
        return [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)]
    encoder, rest = list[Tensor](), list[Tensor]()
    for name, parameter in net.named_parameters():
        (encoder if "encoder" in name else rest).append(parameter)
    return [torch.optim.SGD(encoder, 0.1, momentum=0.9), torch.optim.SGD(rest, 0.05)]


def autocast(recipe: Recipe) -> torch.autocast:
    dtype = torch.float16 if recipe.precision == "16-mixed" else torch.bfloat16
    return torch.autocast("cpu", dtype, enabled=recipe.precision.endswith("mixed"))


def weights_of(net: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def reference(recipe: Recipe, *sizes: int) -> Weights:
    """Train in this process on the batches of all ranks, for each of ``sizes`` in turn."""
    net = recipe.net(Whole(1)).to(recipe.dtype)
    made = optimizers(net, split=recipe.split)
    for size in sizes:
        net.moves = whole = Whole(size)
        _loop(recipe, net, whole, made)
    return weights_of(net)


def _loop(recipe: Recipe, net: Net, whole: Whole, made: list[torch.optim.SGD]) -> None:
    for number, rows in enumerate(recipe.batches(whole) * recipe.epochs, start=1):
        with autocast(recipe):
            loss = loss_of(net(rows), whole)
        (loss / recipe.accumulate).backward()
        if number % recipe.accumulate == 0:
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
            if recipe.after_step(net):
                break


def train(runtime: str, recipe: Recipe, size: int) -> Weights:
    """Train on this rank, one of ``size``, under a runtime; Lightning is imported on ranks only."""
    module = importlib.import_module(f"tests.support.under_{runtime}")
    weights: Weights = module.train(recipe, size)
    return weights


def assert_trained(
    found: Weights, expected: Weights, *, rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=rtol, atol=atol, msg=name)
