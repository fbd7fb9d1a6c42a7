"""A module that holds an Exchange: importable, so that it can be pickled by name."""

from __future__ import annotations

from torch import Tensor, nn

from collectives import Adapter, Exchange, Ring

__all__ = ["Passing"]


class Passing(nn.Module):
    """Passes what its layer makes on to the right."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.layer.weight)
        self.exchange = Exchange(Ring, adapter)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x)
        return self.exchange.shift(made)
