"""Who is let in: ranks of this host and this run, and nobody else."""

from __future__ import annotations

import os
import socket
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
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    assert door.admit(RUN) is None
    assert line.recv(1) == b""
    line.close()
    door.close()


def test_a_rank_that_comes_says_which_it_is_and_shares_memory() -> None:
    door = Door()
    line, arena = Door.visit(door.address, 3, RUN)
    visitor = door.admit(RUN)
    assert visitor is not None
    rank, other, theirs = visitor
    assert rank == 3
    assert isinstance(theirs, Arena)
    assert arena.address(SLOTS - 1) - arena.address(0) == (SLOTS - 1) * SLOT
    with pytest.raises(ConnectionError, match=f"no slot {SLOTS}"):
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
