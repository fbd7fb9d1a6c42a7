"""What is set around an exchange (inference mode, a default device) is not left in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from tests.support.operations import OPERATIONS, Operation

# Packed in one message; received into memory that is used again, and sent round a ring.
SIZES = (6, 300_000)

EVERY_OPERATION = pytest.mark.parametrize("name", OPERATIONS)


def numbers(rows: int) -> Tensor:
    return torch.arange(1.0, rows + 1, dtype=torch.float64, device="cpu")


def in_turns(exchange: Exchange, operation: Operation, rows: int) -> None:
    x = numbers(rows)
    for _ in range(3):  # inference mode comes first
        with torch.inference_mode():
            inferred = operation(exchange, x)
        leaf = x.clone().requires_grad_()
        trained = operation(exchange, leaf)
        exchange.join((trained * trained).sum()).backward()
        assert leaf.grad is not None
        assert inferred.is_inference()
        assert not trained.is_inference()
        assert torch.equal(inferred, trained.detach())


@pytest.mark.ranks(2)
@EVERY_OPERATION
def test_a_group_that_is_used_first_in_inference_mode_trains_afterwards(name: str) -> None:
    exchange = Exchange(Ring, RawDDPAdapter())
    for rows in SIZES:
        in_turns(exchange, OPERATIONS[name], rows)


def trained(operation: Operation, rows: int) -> tuple[Tensor, Tensor]:
    exchange = Exchange(Ring, RawDDPAdapter())
    leaf = numbers(rows).requires_grad_()
    results = [operation(exchange, leaf), operation(exchange, leaf)]
    exchange.join((results[0] * results[1]).sum()).backward()
    assert leaf.grad is not None
    return results[1].detach(), leaf.grad


@pytest.mark.ranks(2)
@EVERY_OPERATION
def test_a_default_device_is_that_of_the_callers_tensors_only(name: str) -> None:
    """A Trainer's and a Fabric's ``init_module`` set one."""
    for rows in SIZES:
        expected = trained(OPERATIONS[name], rows)
        with torch.device("meta"):
            found = trained(OPERATIONS[name], rows)
        assert all(map(torch.equal, found, expected))
