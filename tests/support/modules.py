"""Modules that hold an Exchange; in a file of their own, so that ranks can unpickle them."""

from __future__ import annotations

import torch
from torch import nn

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring

__all__ = ["Holder"]


class Holder(nn.Module):
    """Has a parameter and an Exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.exchange = Exchange(Ring, RawDDPAdapter(), name="inside")
