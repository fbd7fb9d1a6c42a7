"""Who is let in: ranks of this host and this run, and nobody else."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch

from collectives.transport.same_host import Door, SameHost
from collectives.transport.same_host import door as door_module
from collectives.transport.same_host.arena import SLOT, SLOTS, Arena, new_memory
from collectives.transport.same_host.door import same_host
from tests.support.ranks import linux

pytestmark = linux

RUN = "0123456789abcdef"


def knock(door: Door, greeting: bytes, *, memory: bool = True) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect("\0torch-collectives/" + door.address.partition(":")[2])
    if memory:
        descriptor = new_memory()
        socket.send_fds(line, [greeting], [descriptor])
        os.close(descriptor)
    else:
        line.send(greeting)
    return line


def greeting(rank: int, run: str) -> bytes:
    return rank.to_bytes(4, "little") + run.encode()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    ("sent", "memory"),
    [
        (greeting(1, "another run ever"), True),
        (greeting(1, RUN), False),
        (b"GET / HTTP/1.1", True),
        (b"", False),
    ],
)
def test_whoever_is_not_of_this_run_is_turned_away_and_nothing_is_kept(
    sent: bytes, memory: bool
) -> None:
    door = Door()
    before = open_files()
    line = knock(door, sent, memory=memory)
    if not sent:
        line.shutdown(socket.SHUT_WR)
    assert door.admit(RUN) is None
    assert line.recv(1) == b""
    line.close()
    assert open_files() == before
    assert door.admit(RUN) is None  # nobody is there
    door.close()


def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    line, _ = Door.visit(door.address, 1, RUN)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert door.admit(RUN) is None
    with pytest.raises(ConnectionResetError):  # what it said was not even read
        line.recv(1)
    line.close()
    door.close()


def test_who_answers_at_the_door_must_be_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a rank that has ended is free: anybody may take it."""
    door, before = Door(), open_files()
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(ConnectionRefusedError, match="another user"):
        Door.visit(door.address, 1, RUN)
    assert open_files() == before
    door.close()


def test_a_silent_stranger_keeps_nobody_waiting() -> None:
    doors = [Door() for _ in range(2)]
    strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
    for stranger in strangers:
        stranger.connect("\0torch-collectives/" + doors[0].address.partition(":")[2])
    addresses = [door.address for door in doors]
    one, other = (SameHost(door, rank, addresses, RUN) for rank, door in enumerate(doors))
    begun, spent = time.monotonic(), time.process_time()
    with pytest.raises(TimeoutError):
        one.recv([torch.ones(1)], 1, 1).wait(timedelta(seconds=0.3))
    assert time.monotonic() - begun < 1
    assert time.process_time() - spent < 0.2
    got = torch.zeros(1)
    sending = other.send([torch.ones(1)], 0, 2)
    one.recv([got], 1, 2).wait(timedelta(seconds=5))
    assert got.item() == 1
    sending.wait(timedelta(seconds=5))
    for stranger in strangers:
        stranger.close()
    one.close()
    other.close()


def test_a_rank_that_is_stopped_before_it_says_who_it_is_is_let_in_later() -> None:
    door = Door()
    line = knock(door, b"", memory=False)
    assert door.admit(RUN) is None
    descriptor = new_memory()
    socket.send_fds(line, [greeting(2, RUN)], [descriptor])
    visitor = door.admit(RUN)
    assert visitor is not None
    assert visitor[0] == 2
    os.close(descriptor)
    line.close()
    door.close()


def test_a_rank_waits_for_a_place_in_the_queue() -> None:
    door = Door()
    door.listener.listen(1)
    before = [Door.visit(door.address, rank, RUN) for rank in range(2)]  # it holds one more
    letting_in = threading.Timer(0.3, door.admit, (RUN,))
    letting_in.start()
    begun = time.monotonic()
    line, _ = Door.visit(door.address, 2, RUN)
    assert 0.1 < time.monotonic() - begun < 3
    letting_in.join()
    for one in (line, *(line for line, _ in before)):
        one.close()
    door.close()


def test_too_many_open_files_are_told_and_turn_nobody_away() -> None:
    doors = [Door() for _ in range(2)]
    host = SameHost(doors[0], 0, [door.address for door in doors], RUN)
    line, _ = Door.visit(doors[0].address, 1, RUN)
    waiting = host.recv([torch.ones(1)], 1, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    fillers = [os.dup(0) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 2, hard))  # the line, not its memory
    try:
        with pytest.raises(OSError, match=r"from another rank .*Too many open.*ulimit -n"):
            waiting.wait(timedelta(seconds=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    host.close()
    line.close()
    doors[1].close()


def test_a_rank_that_comes_says_which_it_is_and_shares_memory() -> None:
    door = Door()
    line, arena = Door.visit(door.address, 3, RUN)
    visitor = door.admit(RUN)
    assert visitor is not None
    rank, other, theirs = visitor
    assert rank == 3
    assert isinstance(theirs, Arena)
    assert arena.address(SLOTS - 1) - arena.address(0) == (SLOTS - 1) * SLOT
    with pytest.raises(RuntimeError, match=f"no slot {SLOTS}.*install one version"):
        theirs.address(SLOTS)
    for part in (line, other):
        part.close()
    door.close()
    with pytest.raises(ConnectionRefusedError):
        Door.visit(door.address, 3, RUN)


def test_memory_of_another_size_is_refused() -> None:
    descriptor = os.memfd_create("short")
    with pytest.raises(ConnectionError, match="another size"):
        Arena(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_hosts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Door()
    monkeypatch.setattr(door_module, "_host", lambda: "elsewhere")
    there = Door()
    assert same_host(here.address, here.address)
    assert not same_host(here.address, there.address)
    assert not same_host("", "")
    assert not same_host(here.address, "")
    host = SameHost(here, 0, [here.address, there.address, "", here.address], RUN)
    assert host.peers == {3}
    there.close()


def test_a_system_that_has_no_such_thing_has_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(38, "Function not implemented", name)

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        assert Door.open() is None
    with monkeypatch.context() as patch:
        patch.setattr("sys.platform", "darwin")
        assert Door.open() is None
    assert open_files() == before


def test_a_way_that_cannot_be_made_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    doors = [Door(), Door()]
    host = SameHost(doors[0], 0, [door.address for door in doors], RUN)

    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files", name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(
        OSError, match=r"no way to rank 1 .*Too many open.*COLLECTIVES_SAME_HOST=off"
    ):
        host.send([torch.ones(1)], 1, 1).wait(timedelta(seconds=1))
    doors[1].close()
