"""The choice of a device, with torch's answers replaced: no accelerator is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from collectives import devices
from collectives.errors import ContextError


def visible(monkeypatch: pytest.MonkeyPatch, count: int) -> list[torch.device]:
    """Pretend that ``count`` CUDA devices are visible, number 1 the current one."""
    chosen: list[torch.device] = []
    module = SimpleNamespace(
        device_count=lambda: count, current_device=lambda: 1, set_device=chosen.append
    )
    monkeypatch.setattr(devices, "accelerator_kind", lambda: "cuda")
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    return chosen


def test_the_local_rank_chooses_among_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, 4)
    assert devices.pick_device(3) == torch.device("cuda", 3)


def test_the_only_visible_device_is_taken_whatever_the_local_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visible(monkeypatch, 1)
    assert devices.pick_device(3) == torch.device("cuda", 0)
    assert devices.pick_device(None) == torch.device("cuda", 0)


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, 2)
    with pytest.raises(ContextError, match=r"local rank below 2.*got 2"):
        devices.pick_device(2)


def test_several_devices_and_no_local_rank_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, 2)
    with pytest.raises(ContextError, match="set LOCAL_RANK"):
        devices.pick_device(None)


def test_a_machine_without_accelerator_uses_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "accelerator_kind", lambda: None)
    assert devices.pick_device(5) == torch.device("cpu")
    assert devices.current_device() == torch.device("cpu")


def test_a_device_without_index_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, 2)
    assert devices.with_index(torch.device("cuda")) == torch.device("cuda", 1)
    assert devices.with_index(torch.device("cuda", 0)) == torch.device("cuda", 0)
    assert devices.current_device() == torch.device("cuda", 1)


def test_only_an_accelerator_is_made_current(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = visible(monkeypatch, 2)
    devices.set_current_device(torch.device("cpu"))
    devices.set_current_device(torch.device("cuda", 1))
    assert chosen == [torch.device("cuda", 1)]
