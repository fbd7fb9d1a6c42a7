"""G: inside Fabric, on ranks of the pool. See README.md for the entries and public reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapters.fabric import FabricAdapter
from collectives import Exchange, Ring
from collectives.errors import ContextError
from tests.support.probe import fabric

NAMESPACE = "lightning.pytorch"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made

    def embed(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return made


@pytest.mark.ranks(1, backend=None)
def test_before_launch_it_is_too_early_and_the_text_says_what_to_call() -> None:
    """C85: discovery and wrapped methods. Lightning-AI/pytorch-lightning#16856,
    Lightning-AI/pytorch-lightning#17424, Lightning-AI/pytorch-lightning#19690,
    Lightning-AI/pytorch-lightning#17546, Lightning-AI/pytorch-lightning#16922,
    pytorch/pytorch#14616."""
    from lightning.fabric import Fabric

    runtime = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    exchange = Exchange(Ring, FabricAdapter(runtime))
    with pytest.raises(ContextError, match=r"Fabric runs 2 processes.*call fabric\.launch\(\)"):
        exchange.shift(torch.ones(1))


def launched() -> tuple[Any, Any, Exchange, Tensor]:
    runtime = fabric(NAMESPACE)
    exchange = Exchange(Ring, FabricAdapter(runtime))
    runtime.launch()
    net = runtime.setup(Net())
    return runtime, net, exchange, torch.full((1, 2), exchange.rank + 1.0)


def backward(runtime: Any, net: Any, exchange: Exchange, made: Tensor) -> list[float]:
    """Return the gradient of the layer for losses that differ by rank and column."""
    weight = (3 * exchange.rank + 1) * torch.tensor([1.0, 2.0])
    runtime.backward((exchange.shift(made) * weight).sum())
    gradient: list[float] = net.layer.weight.grad.flatten().tolist()
    return gradient


# Rank 0's rows are weighted by rank 1 and the other way round: (1 * 4 + 2 * 1) / 2 = 3.
AVERAGE = [3.0, 3.0, 6.0, 6.0]


@pytest.mark.ranks(2)
def test_the_forward_of_a_wrapped_module_gives_the_average_gradient() -> None:
    """C85: the exchange outside, on what the wrapper returns."""
    runtime, net, exchange, x = launched()
    assert backward(runtime, net, exchange, net(x)) == AVERAGE


@pytest.mark.ranks(2)
def test_a_method_that_is_marked_gives_the_average_gradient_too() -> None:
    """C85: Fabric refuses other methods by itself, and says how to mark them."""
    runtime, net, exchange, x = launched()
    with pytest.raises(RuntimeError, match="mark it as a forward method"):
        net.embed(x)
    net.mark_forward_method("embed")
    assert backward(runtime, net, exchange, net.embed(x)) == AVERAGE


@pytest.mark.ranks(2)
def test_bypassing_the_wrapper_is_not_our_error_to_find(rank: int) -> None:
    """C86: bypassing the wrapper. Lightning-AI/pytorch-lightning#16856,
    Lightning-AI/pytorch-lightning#17424, Lightning-AI/pytorch-lightning#19690,
    Lightning-AI/pytorch-lightning#17546, Lightning-AI/pytorch-lightning#16922,
    pytorch/pytorch#14616."""
    runtime, net, exchange, x = launched()
    gradient = backward(runtime, net, exchange, net.module.layer(x))
    # Right for this rank's rows, as the exchange gives it back; but nobody averages it.
    own = (rank + 1.0) * (3 * (1 - rank) + 1)
    assert gradient == [own, own, 2 * own, 2 * own]
