"""Faults of how a job was started, or started again; and what must not grow with time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from threading import Timer

import torch

from collectives.errors import ContextError, ExchangeError, ExchangeMismatch

from .loop import Loop
from .player import Player
from .row import JOIN_TIMEOUT, NOTHING, Expected, Row

__all__ = ["JOBS"]


def refused(*says: str) -> Expected:
    """Return what ranks must see of a job that cannot work: it ends within its timeout."""
    return Expected((ContextError, ExchangeMismatch), within=JOIN_TIMEOUT, says=says)


def exchange_once(player: Player, rank: int, size: int) -> None:
    with player.joined(rank, size) as adapter:
        at = Loop(player, adapter, player.exchange(adapter), (64,))
        at.both_ways()


def with_another_world_size(player: Player) -> None:
    player.fault()
    exchange_once(player, player.number, 3 if player.number == 2 else 4)


def twice_the_same_rank(player: Player) -> None:
    """Process 2 says to be rank 1, too."""
    if player.number == 2:
        player.wait_for("0", "1")
        player.fault()
        exchange_once(player, 1, 2)
    with player.joined(size=2) as adapter:
        at = Loop(player, adapter, player.exchange(adapter), (64,))
        at.both_ways()
        (player.folder / str(player.number)).touch()
        time.sleep(2.0)
        at.both_ways()


def two_jobs(player: Player) -> None:
    """Processes 0 and 1 are job A, 2 and 3 job B; rank 1 of B comes before that of A."""
    job, rank = divmod(player.number, 2)
    os.environ["TORCHELASTIC_RUN_ID"] = "AB"[job]
    time.sleep((0.0, 1.0, 1.0, 0.3)[player.number])
    player.fault()
    exchange_once(player, rank, 2)


def restarted(joined_before: tuple[int, ...]) -> Callable[[Player], None]:
    """Return a job that is started again over the same store, where rank 1 comes late.

    Args:
        joined_before: Ranks of the first attempt that came as far as the store.
    """

    def program(player: Player) -> None:
        attempt, rank = divmod(player.number, 2)
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        if attempt == 0:
            if rank in joined_before:
                _join_and_die(player, rank, joined_before)
            return
        player.wait_for(*map(str, joined_before))
        time.sleep(1.0 * rank)
        exchange_once(player, rank, 2)

    return program


def _join_and_die(player: Player, rank: int, joined: tuple[int, ...]) -> None:
    if len(joined) == 1:  # it dies while it waits for the others
        Timer(0.5, _die, (player, rank)).start()
    with player.joined(rank, 2) as adapter:
        player.exchange(adapter).shift(torch.ones(1))
        (player.folder / f"{rank} joined").touch()
        player.wait_for(*(f"{other} joined" for other in joined))
        _die(player, rank)


def _die(player: Player, rank: int) -> None:
    (player.folder / str(rank)).touch()
    os.kill(os.getpid(), SIGKILL)


def renewed(player: Player) -> None:
    """Fail on all ranks, make a new generation, and go on."""
    with player.joined() as adapter:
        at = Loop(player, adapter, player.exchange(adapter), (64,))
        at.both_ways()
        try:
            if player.number == 2:
                at.exchange.abort("bad batch")
            while True:
                at.both_ways()
        except ExchangeError:
            at.exchange.renew(timeout=10.0)
        for at.step in range(1, 8):
            at.exchange.mark_step(at.step)
            at.both_ways()


def two_thousand_exchanges(player: Player) -> None:
    with player.joined() as adapter:
        at = Loop(player, adapter, player.exchange(adapter), (64,))
        before = Resources.now()
        for at.step in range(2200):
            at.exchange.mark_step(at.step)
            at.both_ways()
            if at.step == 200:
                before = Resources.now()
        now = Resources.now()
        now.check_handles(before)
        grown = now.memory - before.memory
        assert grown < 2.0, f"memory grew by {grown:.1f} MiB"


def hundred_groups(player: Player) -> None:
    before = Resources.now()
    for step in range(105):
        exchange_once(player, player.number, player.row.size)
        if step == 5:
            before = Resources.now()
    Resources.when_settled(before).check_handles(before)


# Files that a process may have more from one moment to the next, of connections that come and go.
_HELD = 3


class Resources:
    """What a process holds: memory in MiB, open files, threads."""

    def __init__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.files = len(list(Path("/proc/self/fd").iterdir()))
        self.threads = len(list(Path("/proc/self/task").iterdir()))

    @classmethod
    def now(cls) -> Resources:
        return cls()

    @classmethod
    def when_settled(cls, before: Resources) -> Resources:
        """Return what is held once no more is let go of, within seconds.

        The store that one rank holds closes a connection some time after its peer has.
        """
        end = time.monotonic() + 5.0
        while (found := cls()).files > before.files + _HELD and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def check_handles(self, before: Resources) -> None:
        """Raise if there are more files or threads than before."""
        assert self.files <= before.files + _HELD, f"{before.files} open files became {self.files}"
        assert self.threads <= before.threads, f"{before.threads} threads became {self.threads}"


JOBS = (
    Row(
        "other world size on one rank",
        with_another_world_size,
        refused("rank 2", "3", "4"),
        store="port",
    ),
    Row("two jobs on one port", two_jobs, refused(), store="port"),
    Row(
        "duplicate rank",
        twice_the_same_rank,
        NOTHING,
        but={2: refused("rank 1")},
        size=3,
        store="port",
    ),
    Row(
        "restart with stale keys",
        restarted((0, 1)),
        NOTHING,
        but={0: None, 1: None},
        store="outside",
    ),
    Row(
        "restart after rank 0 alone had come",
        restarted((0,)),
        NOTHING,
        but={0: None, 1: None},
        store="outside",
    ),
    Row("abort, then renew", renewed, NOTHING),
    Row(
        "2,000 exchanges: memory, files, threads", two_thousand_exchanges, NOTHING, size=2, limit=60
    ),
    Row("100 groups: files, threads", hundred_groups, NOTHING, size=2, limit=60),
)
