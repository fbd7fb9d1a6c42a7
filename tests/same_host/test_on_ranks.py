"""Which way messages of an exchange go, and that it makes no difference to what arrives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Exchange, Ring
from collectives.errors import ExchangeError
from collectives.transport import Work
from collectives.transport import group as group_module
from collectives.transport.same_host import SameHost
from collectives.transport.same_host import door as door_module
from collectives.transport.same_host.arena import SLOTS
from collectives.transport.same_host.frame import SHORT
from collectives.transport.same_host.inbox import Receive
from tests.support.ranks import linux, wait_until

pytestmark = linux

Verify = Literal["auto", "always"]

SIZES = (1, 7, 20_000, 400_000, 1_000_003)


def watch(patch: pytest.MonkeyPatch) -> list[int]:
    peers: list[int] = []
    send = SameHost.send

    def noted(self: SameHost, tensors: list[torch.Tensor], peer: int, tag: int) -> object:
        peers.append(peer)
        return send(self, tensors, peer, tag)

    patch.setattr(SameHost, "send", noted)
    return peers


def payload(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float64) * (rank + 1) + 0.25


def results(exchange: Exchange, rank: int) -> Iterator[torch.Tensor]:
    """Yield what arrives, and gradients, of exchanges of several sizes."""
    for count in SIZES:
        left, right = (payload(rank + side, count).requires_grad_() for side in (0, 100))
        got = exchange.exchange(to_left=left, to_right=right)
        loss = (got.from_left * payload(rank, count)).sum() - got.from_right.sum() * rank
        exchange.join(loss).backward()
        yield from (got.from_left.detach(), got.from_right.detach())
        for side in (left, right):
            assert side.grad is not None
            yield side.grad


def check_against_gloo(
    rank: int, patch: pytest.MonkeyPatch, expected: set[int], verify: Verify = "auto"
) -> None:
    """Run over a group where ranks go their own way, and one where all goes over gloo."""
    peers = watch(patch)
    mixed = Exchange(Ring, RawDDPAdapter(dist.new_group()), timeout=20, verify=verify)
    ours = list(results(mixed, rank))
    assert set(peers) == expected
    peers.clear()
    patch.setenv("COLLECTIVES_SAME_HOST", "off")
    plain = Exchange(Ring, RawDDPAdapter(dist.new_group()), timeout=20, verify=verify)
    theirs = list(results(plain, rank))
    assert not peers
    assert len(ours) == len(theirs) == 4 * len(SIZES)
    assert all(map(torch.equal, ours, theirs))


def neighbours(rank: int, size: int) -> set[int]:
    return {(rank - 1) % size, (rank + 1) % size} - {rank}


@pytest.mark.ranks(1, 2, 3, 5, timeout=60)
@pytest.mark.parametrize("verify", ["auto", "always"])
def test_ranks_of_one_host_get_the_same_bits_as_over_gloo(
    rank: int, world_size: int, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_against_gloo(rank, monkeypatch, neighbours(rank, world_size), verify)


@pytest.mark.ranks(2, 3, 5, timeout=60)
def test_ranks_of_two_hosts_go_over_gloo_between_them(
    rank: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host(of: int) -> str:
        return f"host {of // 2}"

    monkeypatch.setattr(door_module, "_host", lambda: host(rank))
    near = {peer for peer in neighbours(rank, world_size) if host(peer) == host(rank)}
    check_against_gloo(rank, monkeypatch, near)


@pytest.mark.ranks(2, 3, 5, timeout=60)
def test_a_rank_that_is_told_to_or_must_goes_over_gloo_and_the_others_among_themselves(
    rank: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank == 0:
        monkeypatch.setenv("COLLECTIVES_SAME_HOST", "off")
    near = neighbours(rank, world_size) - {0} if rank else set()
    check_against_gloo(rank, monkeypatch, near)


class Noted:
    """A message over gloo whose wait is noted."""

    def __init__(self, work: Work, waits: list[str]) -> None:
        self.work, self.waits = work, waits

    def wait(self, timeout: timedelta) -> object:
        self.waits.append("far")
        return self.work.wait(timeout)


@pytest.mark.ranks(3)
def test_what_waits_must_move_is_waited_for_before_what_gloo_moves_by_itself(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round, a far rank that is late would hold up a long message to a near one."""
    waits: list[str] = []
    near_wait, far = Receive.wait, group_module.post_function

    def noted(self: Receive, timeout: timedelta) -> None:
        waits.append("near")
        near_wait(self, timeout)

    def post(backend: object, name: Literal["send", "recv"]) -> Callable[..., Noted]:
        return lambda *message: Noted(far(backend, name)(*message), waits)

    monkeypatch.setattr(Receive, "wait", noted)
    monkeypatch.setattr(group_module, "post_function", post)
    monkeypatch.setattr(door_module, "_host", lambda: f"host {rank // 2}")
    exchange = Exchange(Ring, RawDDPAdapter(dist.new_group()), timeout=20)
    got = exchange.exchange(to_left=torch.tensor([rank]), to_right=torch.tensor([10 * rank]))
    assert got.from_left.tolist() == [10 * ((rank - 1) % 3)]
    assert got.from_right.tolist() == [(rank + 1) % 3]
    # Rank 2 is alone on its host; the others have one neighbour here, and that one there.
    assert waits == (["near", "far", "far"] if rank < 2 else 4 * ["far"])


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("nbytes", [SHORT, SHORT + 1, 65_536])
def test_sixty_four_messages_move_on_by_themselves_before_a_barrier(
    rank: int, world_size: int, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sockets of the room that Linux gives by default; this system may give more."""
    monkeypatch.setattr(door_module, "_ROOM", 212_992)
    exchange = Exchange(Ring, RawDDPAdapter(dist.new_group()), timeout=10)
    exchange.shift(torch.tensor([rank]))
    sent = [torch.full((nbytes,), rank + n, dtype=torch.uint8) for n in range(SLOTS)]
    started = [exchange.start_shift(x) for x in sent]
    if rank == 0:
        dist.barrier()
    for number, pending in enumerate(started):
        assert (pending.wait() == (rank - 1) % world_size + number).all()
    if rank:
        dist.barrier()


@pytest.mark.ranks(2, 3, 5)
def test_a_wait_in_one_group_moves_the_messages_of_another(rank: int, world_size: int) -> None:
    """More than there is room for; the ranks wait in another order than each other."""
    here, there = (Exchange(Ring, RawDDPAdapter(dist.new_group()), timeout=20) for _ in range(2))
    for exchange in (here, there):
        exchange.shift(torch.tensor([rank]))
    started = [there.start_shift(torch.full((3_000,), rank + n)) for n in range(2 * SLOTS)]
    if rank == 0:
        here.shift(torch.tensor([rank]))
    for number, pending in enumerate(started):
        assert (pending.wait() == (rank - 1) % world_size + number).all()
    if rank:
        here.shift(torch.tensor([rank]))


@pytest.mark.ranks(2, 3, 5, fresh=True)
def test_a_renewed_group_has_given_back_files_and_memory_of_the_one_before(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20)
    big = torch.full((3 << 20,), rank, dtype=torch.uint8)

    def taken() -> tuple[int, int]:
        exchange.exchange(to_left=big, to_right=big)
        maps, sockets = (Path(f"/proc/self/{name}").read_text() for name in ("maps", "net/unix"))
        inodes = [int(line.split()[6]) for line in sockets.splitlines()[1:]]
        mine = links()
        return maps.count("memfd:collectives"), sum(f"socket:[{n}]" in mine for n in inodes)

    def go_round() -> None:
        while True:  # who is not beside rank 0 may get some more
            exchange.shift(big)

    before = taken()
    assert min(before) >= 2
    for _ in range(3):
        if rank == 0:
            exchange.abort("a new beginning")
        with pytest.raises(ExchangeError, match="a new beginning"):
            go_round()
        exchange.renew()
        assert taken() == before


@pytest.mark.ranks(3)
def test_unwatched_exchanges_go_over_gloo(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = watch(monkeypatch)
    got = Exchange(Ring, RawDDPAdapter(), verify="off").shift(torch.tensor([rank]))
    assert got.tolist() == [(rank - 1) % 3]
    assert not peers


@pytest.mark.ranks(2, 3, fresh=True)
def test_a_destroyed_group_leaves_no_file_open(rank: int) -> None:
    def go_round() -> None:
        group = dist.new_group()
        exchange = Exchange(Ring, RawDDPAdapter(group), timeout=20)
        exchange.shift(torch.tensor([rank]))
        exchange.close()
        dist.barrier()
        dist.destroy_process_group(group)

    go_round()
    dist.barrier()
    before = len(links())
    for _ in range(10):
        go_round()
    # The watchdog lets go of a group a moment after its end.
    assert wait_until(lambda: len(links()) <= before, seconds=10)
    dist.barrier()


@pytest.mark.ranks(2)
def test_a_forked_child_does_not_keep_the_ways_of_its_parent_open(rank: int) -> None:
    """A data loader's worker that outlives its rank must not hide the end of it from the others."""
    exchange = Exchange(Ring, RawDDPAdapter(), timeout=20)
    exchange.shift(torch.tensor([rank]))
    mine = [link for link in links() if "socket" in link]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, str(len([link for link in links() if link in mine])).encode())
        os._exit(0)
    os.waitpid(child, 0)
    inherited = int(os.read(read, 16))
    # The door, the way to the other rank and the way from it are closed there.
    assert len(mine) - inherited >= 3
    exchange.shift(torch.tensor([rank]))
    for end in (read, write):
        os.close(end)


def links() -> list[str]:
    """Return what this process holds open."""
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # the one that listed them
            found.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    return found
