"""F: start-up and shut-down. See README.md for the entries and their public reports."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ContextError
from tests.support.starts import SLACK, fails_within, join, launched


@pytest.mark.ranks(2, backend=None)
def test_a_script_starts_many_times_at_one_address(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C77: init. Lightning-AI/pytorch-lightning#2537, Lightning-AI/pytorch-lightning#401,
    Lightning-AI/pytorch-lightning#485, Lightning-AI/pytorch-lightning#2081,
    optuna/optuna#1765: "Address already in use" at the second start."""
    launched(monkeypatch, rank, 2, port)
    for _ in range(3):
        join(timeout=30)


@pytest.mark.ranks(1, backend=None)
def test_a_port_in_use_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """C77. Lightning-AI/pytorch-lightning#697, Lightning-AI/pytorch-lightning#3327,
    Lightning-AI/pytorch-lightning#17546."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        launched(monkeypatch, 0, 2, port)
        with fails_within(SLACK, f"port {port} .*is in use.*leave --master-port"):
            join(timeout=60)


@pytest.mark.ranks(4, backend=None)
def test_ranks_that_disagree_on_the_size_do_not_start(
    rank: int, agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C77: WORLD_SIZE=3 on one of four ranks."""
    size = 3 if rank == 2 else 4
    launched(monkeypatch, rank, size, agent, TORCHELASTIC_USE_AGENT_STORE=True)
    with fails_within(SLACK, r"disagree: size \d there, \d here"):
        join(timeout=60)


@pytest.mark.ranks(3, backend=None, fresh=True)
def test_the_plain_form_starts_with_two_ranks_of_three(rank: int, agent: int) -> None:
    """C77, control: two ranks believe that there are two, and the third is told nothing of it."""
    store = TCPStore("127.0.0.1", agent, is_master=False)
    if rank < 2:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        return
    limit, text = timedelta(seconds=0.3), ""
    try:  # mostly it times out; on a loaded machine it may connect, and be one of three alone
        dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=limit)
    except RuntimeError as error:
        text = str(error)
    assert "size" not in text


@pytest.mark.ranks(1, backend=None)
def test_the_cpu_is_not_given_to_torch_as_a_device_id() -> None:
    """C77. pytorch/pytorch#54991, pytorch/pytorch#124714, pytorch/pytorch#134617,
    pytorch/pytorch#159389, deepspeedai/DeepSpeed#7266."""
    with RawDDPAdapter(rank=0, size=1, device="cpu") as adapter:
        group = adapter.context().group
        assert group is not None
        assert group.bound_device_id is None
        dist.barrier()  # a warning would be an error here


@pytest.mark.ranks(1, backend=None)
def test_the_plain_form_refuses_the_cpu_as_a_device_id() -> None:
    """C77, control."""
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="device_id"):
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, device_id=cpu)


def test_before_init_the_text_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """C77: use before init."""
    launched(monkeypatch, 1, 2, 29500)
    with pytest.raises(ContextError, match=r"call torch.distributed.init_process_group\(\) before"):
        Exchange(Ring, RawDDPAdapter()).shift(torch.ones(1))


@pytest.mark.ranks(2, backend=None)
def test_a_rank_that_is_done_waits_for_those_that_still_exchange(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C78: destroy. Lightning-AI/pytorch-lightning#19931, NVIDIA/Megatron-LM#1541,
    modelscope/ms-swift#9726."""
    launched(monkeypatch, rank, 2, port)
    with RawDDPAdapter(device="cpu", timeout=30) as adapter:
        Exchange(Ring, adapter).shift(torch.ones(1))
        if rank == 1:
            time.sleep(0.3)
            dist.send(torch.ones(1), 0)
        else:
            arriving = dist.irecv(torch.zeros(1), 1)
            assert arriving is not None
    assert not dist.is_initialized()


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_after_an_error_nobody_waits_and_the_group_is_left_to_the_end_of_the_process(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C78. Lightning-AI/pytorch-lightning#8080, ai2cm/ace#679."""
    launched(monkeypatch, rank, 2, port)
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError), RawDDPAdapter(device="cpu", timeout=60):
        _ = 1 / 0
    assert time.monotonic() - begun < SLACK
    assert dist.is_initialized()


@pytest.mark.ranks(2, fresh=True)
def test_in_the_plain_form_a_rank_that_destroys_its_group_breaks_the_others(rank: int) -> None:
    """C78, control."""
    dist.barrier()
    if rank == 0:
        dist.destroy_process_group()
    else:
        with pytest.raises(RuntimeError, match=r"(?i)closed|reset"):
            dist.recv(torch.zeros(1), 0)
