"""RawDDPAdapter: every way in which a start fails is a text, on every rank, in time."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from tests.support.starts import SLACK, fails_within, join, launched


@pytest.mark.ranks(3, backend=None)
def test_a_rank_with_another_world_size_is_named_on_every_rank(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, 4 if rank == 1 else 3, port)
    with fails_within(SLACK, r"disagree: size \d there, \d here.*WORLD_SIZE.*127.0.0.1"):
        join(timeout=30)


@pytest.mark.ranks(2, backend=None)
def test_without_a_port_ranks_of_another_size_find_each_other_too(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        fails_within(SLACK, r"disagree: size \d there, \d here"),
        RawDDPAdapter(rank=rank, size=2 + rank, device="cpu", timeout=30),
    ):
        pytest.fail("started")


@pytest.mark.ranks(4, backend=None)
def test_two_jobs_at_one_address_are_told_so(
    rank: int, agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "AB"[rank // 2]
    launched(
        monkeypatch, rank % 2, 2, agent, TORCHELASTIC_RUN_ID=job, TORCHELASTIC_USE_AGENT_STORE=True
    )
    if rank in (1, 2):
        time.sleep(0.5)  # a job whose ranks all come before the other's is whole, and starts
    with fails_within(SLACK, "job 'torchrun [AB]' there, .*two jobs meet at one address"):
        join(timeout=30)


@pytest.mark.ranks(2, backend=None)
def test_a_second_job_that_opens_the_same_port_learns_whose_it_is(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 0, 2, port, TORCHELASTIC_RUN_ID="AB"[rank])
    with fails_within(2 * SLACK, "job 'torchrun [AB]' there, .*two jobs meet at one address"):
        join(timeout=30)


@pytest.mark.ranks(2, 3, backend=None)
def test_processes_that_all_have_rank_0_name_each_other(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 0, 3, port, LOCAL_RANK=rank)
    with fails_within(2 * SLACK, r"claim rank 0: process \d+ on \S+ and process \d+ on \S+"):
        join(timeout=30)


@pytest.mark.ranks(3, backend=None)
def test_two_processes_of_one_rank_are_named_on_every_rank(
    rank: int, agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, min(rank, 1), 4, agent, TORCHELASTIC_USE_AGENT_STORE=True)
    with fails_within(SLACK, "two processes claim rank 1"):
        join(timeout=30)


@pytest.mark.ranks(3, backend=None)
def test_a_rank_that_is_absent_is_named_on_every_rank(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank == 1:
        return
    launched(monkeypatch, rank, 3, port)
    with fails_within(0.8 + SLACK, "rank 1 did not come within 0.*2 of 3 came.*start all ranks"):
        join(timeout=0.8)


@pytest.mark.ranks(1, backend=None)
def test_an_absent_rank_0_is_named_with_its_address(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 1, 2, port)
    expected = rf"rank 0 to listen at 127.0.0.1:{port} .*within 0.3 s, got Connection refused"
    with fails_within(0.3 + SLACK, expected):
        join(timeout=0.3)


@pytest.mark.ranks(1, backend=None)
def test_an_address_that_cannot_be_resolved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, 1, 2, 29500, MASTER_ADDR="no-such-host.invalid")
    with fails_within(0.3 + SLACK, "no-such-host.invalid"):
        join(timeout=0.3)


@pytest.mark.ranks(1, backend=None)
def test_a_port_in_use_is_named_by_rank_0_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        launched(monkeypatch, 0, 2, port)
        with fails_within(SLACK, rf"port {port} .*in use.*rank 0 of 2.*leave --master-port"):
            join(timeout=60)


@pytest.mark.ranks(1, backend=None)
@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "talking"]
)
def test_another_program_at_the_address_is_found_in_time_by_the_other_ranks(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        launched(monkeypatch, 1, 2, other.getsockname()[1])
        calls: list[socket.socket] = []

        def serve() -> None:
            # The first call asks whether anybody listens, the second is the store's own.
            calls.extend(other.accept()[0] for _ in range(2))
            if answer:
                calls[-1].sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with fails_within(0.3 + SLACK, r"127.0.0.1:\d+.* another program"):
            join(timeout=0.3)
        thread.join()
        for call in calls:
            call.close()


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_an_interface_that_does_not_exist_is_named_on_both_ranks(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, 2, port)
    if rank == 1:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    expected = r"(?s)GLOO_SOCKET_IFNAME='eth99': expected an interface.*\blo\b.*\(rank 1 of 2\)"
    with fails_within(2 * SLACK, expected):
        join(timeout=60)


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_an_address_that_gloo_cannot_reach_is_explained_on_both_ranks(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts whose names resolve to loopback addresses; gloo's text is that of torch 2.13."""
    launched(monkeypatch, rank, 2, port)
    if rank == 1:

        def refused(*_: object, **__: object) -> None:
            raise RuntimeError(
                "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: SO_ERROR:"
                " Connection refused, remote=[127.0.0.1]:1234"
            )

        monkeypatch.setattr(dist, "init_process_group", refused)
    with fails_within(2 * SLACK, r"(?s)loopback.*set GLOO_SOCKET_IFNAME.*\(rank 1 of 2\)"):
        join(timeout=60)


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_a_rank_that_ends_while_gloo_connects_is_not_taken_for_a_wrong_address(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, 2, port)
    if rank == 1:

        def closed(*_: object, **__: object) -> None:
            raise RuntimeError("Gloo connectFullMesh failed with Connection closed by peer [::1]:7")

        monkeypatch.setattr(dist, "init_process_group", closed)
    with fails_within(2 * SLACK, r"another rank ended while gloo connected: .*see its own output"):
        join(timeout=60)


@pytest.mark.ranks(2, backend=None)
def test_a_rank_that_comes_but_does_not_connect_is_told_from_one_that_is_absent(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, 2, port)
    if rank == 1:
        monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: time.sleep(4))
    with fails_within(2 + SLACK, r"a rank came, but did not get as far.*\(rank 0 of 2\)"):
        join(timeout=2)  # in which rank 1 must come, on a loaded machine too


@pytest.mark.ranks(2, 3, 5, backend=None, fresh=True)
def test_rank_0_holds_its_store_until_a_slow_rank_has_read_why_it_failed(
    rank: int, world_size: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, rank, world_size, port)

    def listen_late(target: Callable[[], None], _: str) -> None:
        threading.Timer(1.5, target).start()  # 0.5 s after the failure

    def fail(*_: object, **__: object) -> None:
        time.sleep(1)
        raise RuntimeError("no memory")

    if rank == 1:
        monkeypatch.setattr("collectives.transport.start.start_helper", listen_late)
    monkeypatch.setattr(
        dist, "init_process_group", fail if rank == 0 else lambda *_, **__: time.sleep(5)
    )
    with fails_within(1 + SLACK, rf"no memory \(rank 0 of {world_size}\)"):
        join(timeout=60)


@pytest.mark.ranks(2, backend=None, fresh=True)
def test_no_call_of_torch_holds_a_rank_beyond_the_timeout(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo waits five times as long for a peer that does not accept its connection."""
    launched(monkeypatch, rank, 2, port)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: time.sleep(60))
    with fails_within(1 + SLACK, r"all ranks to connect over gloo within 1 s"):
        join(timeout=1)


@pytest.mark.ranks(1, backend=None, fresh=True)
def test_an_interrupt_ends_the_wait_for_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, 0, 2, port)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        join(timeout=60)
    assert time.monotonic() - begun < 1.5
