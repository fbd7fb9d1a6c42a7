"""One training, told once: the same under every runtime, and in one process as the reference."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

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
Precision = Literal["64-true", "32-true", "bf16-true", "16-true", "bf16-mixed"]

DTYPES = {
    "64-true": torch.float64,
    "32-true": torch.float32,
    "bf16-true": torch.bfloat16,
    "16-true": torch.float16,
    "bf16-mixed": torch.float32,
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    Args:
        net: Makes the module, which exchanges by what it is given.
        steps: Of the optimizer.
        accumulate: Batches for each step.
        clip: Largest norm of the gradient; ``None``: any.
        split: One optimizer for the encoder and one for the rest, instead of one for all.
        precision: As Lightning names it.
        ddp: Options of DistributedDataParallel.
        trainer: Options of Lightning's Trainer.
    """

    net: Callable[[Moves], nn.Module] = Net
    steps: int = 3
    accumulate: int = 1
    clip: float | None = None
    split: bool = False
    precision: Precision = "64-true"
    ddp: Mapping[str, bool] = field(default_factory=dict)
    trainer: Mapping[str, object] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return DTYPES[self.precision]

    def batches(self, rank: int | slice) -> list[Tensor]:
        """Return what a rank trains on, batch by batch, in float64."""
        return [rows_of(number)[rank] for number in range(self.steps * self.accumulate)]


def optimizers(net: nn.Module, *, split: bool) -> list[torch.optim.SGD]:
    if not split:
        return [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)]
    encoder, rest = list[Tensor](), list[Tensor]()
    for name, parameter in net.named_parameters():
        (encoder if "encoder" in name else rest).append(parameter)
    return [torch.optim.SGD(encoder, 0.1, momentum=0.9), torch.optim.SGD(rest, 0.05)]


def autocast(recipe: Recipe) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16-mixed")


def weights_of(net: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def reference(recipe: Recipe, size: int) -> Weights:
    """Train in this process on the batches of all ranks."""
    return weights_of(list(reference_steps(recipe, size))[-1])


def reference_steps(recipe: Recipe, size: int) -> Iterator[nn.Module]:
    """Train in this process on the batches of all ranks; yields the module after each step."""
    whole = Whole(size)
    net = recipe.net(whole).to(recipe.dtype)
    made = optimizers(net, split=recipe.split)
    for number, rows in enumerate(recipe.batches(slice(size)), start=1):
        with autocast(recipe):
            loss = loss_of(net(rows.to(recipe.dtype)), whole)
        (loss / recipe.accumulate).backward()
        if number % recipe.accumulate == 0:
            if recipe.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
            yield net


def train(runtime: str, recipe: Recipe, size: int) -> Weights:
    """Train on this rank, one of ``size``, under a runtime; Lightning is imported on ranks only."""
    module = importlib.import_module(f"tests.support.under_{runtime}")
    weights: Weights = module.train(recipe, size)
    return weights


def assert_trained(
    found: Weights, expected: Weights, *, rtol: float = 1e-10, atol: float = 1e-12
) -> None:
    """Compare by name; a prefix of the runtime's own is left off."""
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=rtol, atol=atol, msg=name)
