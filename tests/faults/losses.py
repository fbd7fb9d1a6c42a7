"""Faults of ranks that are gone, stopped, or leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from signal import SIGCONT, SIGKILL, SIGSTOP
from threading import Thread

import torch
import torch.distributed as dist

from collectives.errors import ExchangeError, ExchangeTimeout, PeerLost

from .loop import Loop, loop
from .player import Player
from .row import DEADLINE, JOIN_TIMEOUT, NOTHING, STALL, STORE, Expected, Row

__all__ = ["LOSSES", "gone", "told"]


def told(*says: str) -> Expected:
    """Return what peers must see of a rank that can still say why it leaves."""
    return Expected((PeerLost,), within=STALL + 1, says=says)


def gone(rank: int) -> Expected:
    """Return what peers must see of a rank that has ended or left the group."""
    return Expected((PeerLost,), within=1.5, says=(f"rank {rank}",))


# Ranks meet through the store, which asks for the name of each that connects, one by one.
NEVER_CAME = replace(gone(2), within=3)
SILENT = Expected((ExchangeTimeout, PeerLost), within=DEADLINE + 1)
# Of a rank that is no neighbour, and cannot ask the store: its neighbours have gone.
CUT_OFF = Expected((PeerLost,), within=1.5)
# A thread that waits for a frozen store cannot be ended, and must not keep the process.
WITHOUT_STORE = Expected((ExchangeError,), within=DEADLINE + 3, may_leave_threads=True)
_RANK_2_ITSELF = {2: None}


def die(_: Loop) -> None:
    os.kill(os.getpid(), SIGKILL)


def die_during(at: Loop) -> None:
    """Die while a message arrives: gloo does not tell the peer, which waits for the rest of one."""
    out = torch.zeros(at.shape)

    def die_meanwhile() -> None:
        while out[0] == 0:  # until the first bytes have come
            time.sleep(0.001)
        at.player.fault()
        os.kill(os.getpid(), SIGKILL)

    Thread(target=die_meanwhile).start()
    at.exchange.shift(torch.ones(at.shape), out=out)
    time.sleep(JOIN_TIMEOUT)


def leave(_: Loop) -> None:
    raise SystemExit(0)


def raise_error(_: Loop) -> None:
    raise ValueError("bad batch")


def live_on(_: Loop, seconds: float = 3.0) -> None:
    time.sleep(seconds)
    raise SystemExit(0)


def destroy(at: Loop) -> None:
    dist.destroy_process_group()
    live_on(at)


def end_early(at: Loop) -> None:
    at.exchange.close()
    live_on(at)


def abort(at: Loop) -> None:
    at.exchange.abort("the disk is full")
    live_on(at)


def raise_and_live_on(at: Loop) -> None:
    """Raise through ``with exchange:``, in a process that does not end then."""
    try:
        with at.exchange:
            raise_error(at)
    except ValueError:
        live_on(at)


def before_the_first(instead: Callable[[Loop], None], by: int = 2) -> Callable[[Player], None]:
    """Return a program in which one rank, once all have joined, does not come to the exchange."""

    def program(player: Player) -> None:
        with player.joined() as adapter:
            at = Loop(player, adapter, player.exchange(adapter), shape=(64,))
            (player.folder / f"joined-{player.number}").touch()
            player.wait_for(*(f"joined-{number}" for number in range(player.row.size)))
            if player.number == by:
                player.fault()
                instead(at)
            else:
                at.both_ways()

    return program


def stop_for_ever(_: Loop) -> None:
    os.kill(os.getpid(), SIGSTOP)


def be_stopped(at: Loop) -> None:
    at.player.send_signal(at.player.number, SIGSTOP, then=SIGCONT, after=2.0)
    at.both_ways()


def lose_the_store(at: Loop) -> None:
    at.player.send_signal(STORE, SIGKILL)
    time.sleep(0.2)
    at.both_ways()


def lose_the_store_and_skip(at: Loop) -> None:
    at.player.send_signal(STORE, SIGKILL)


def freeze_the_store_and_skip(at: Loop) -> None:
    at.player.send_signal(STORE, SIGSTOP)


def send_big(at: Loop) -> None:
    at.exchange.shift(torch.ones(at.shape))


def send_many(at: Loop) -> None:
    """Start more messages than ranks of one host have room for, and wait for them later."""
    tensors = [torch.ones(at.shape) for _ in range(_MANY)]
    started = at.exchange.start_shift(tensors, timeout=2 * DEADLINE)  # to be told from it
    time.sleep(0.5)
    started.wait()


def die_under_way(at: Loop) -> None:
    """Die when all messages have been asked for, and the last have not left."""
    at.exchange.start_shift([torch.ones(at.shape) for _ in range(_MANY)])
    os.kill(os.getpid(), SIGKILL)


def renew_after(at: Loop) -> None:
    """Take an error for one that all ranks outlive, as long as nobody says otherwise."""
    try:
        at.both_ways()
    except ExchangeError:
        at.exchange.renew(timeout=60.0)


_BIG = (1 << 24,)  # 64 MiB of float32
_MANY = 100  # messages

LOSSES = (
    Row("SIGKILL", loop(die), gone(2), but=_RANK_2_ITSELF),
    Row(
        "SIGKILL during 64 MiB",
        loop(die_during, usually=send_big, by=1, shape=_BIG, steps=3, at=1),
        # gloo leaves the receiver's thread waiting for the rest of the message.
        replace(gone(1), may_leave_threads=True),
        but={1: None},
        size=2,
    ),
    Row(
        "SIGKILL with 100 messages started",
        loop(die_under_way, usually=send_many, by=1, shape=(1 << 15,), steps=3, at=1),
        replace(gone(1), may_leave_threads=True),
        but={1: None},
        size=3,
    ),
    Row("SIGKILL before the first exchange", before_the_first(die), NEVER_CAME, but=_RANK_2_ITSELF),
    Row(
        "SIGKILL of the store's host before the first exchange",
        before_the_first(die, by=0),
        replace(NEVER_CAME, says=(), may_leave_threads=True),
        but={0: None},
    ),
    Row(
        "exit 0 before the first exchange",
        before_the_first(leave),
        NEVER_CAME,
        but={2: Expected((SystemExit,), code=0)},
    ),
    Row(
        "exception before the first exchange",
        before_the_first(raise_error),
        told("rank 2 raised ValueError: bad batch"),
        but={2: Expected((ValueError,))},
    ),
    Row(
        "end of the block before the first exchange",
        before_the_first(lambda at: None),
        told("rank 2 is at the end of its block, and has exchanged nothing"),
        but={2: Expected((PeerLost,), within=STALL + 1)},
    ),
    Row("SIGKILL of the store's host", loop(die, by=0), gone(0), but={0: None, 2: CUT_OFF}),
    Row("exit 0", loop(leave), gone(2), but={2: Expected((SystemExit,), code=0)}),
    Row(
        "SIGKILL, then renew",
        loop(die, usually=renew_after),
        # A rank that lives comes back within 3 s, though its connections were closed.
        replace(gone(2), within=4.5, says=("renew", "rank 2 is lost")),
        but=_RANK_2_ITSELF,
    ),
    Row(
        "exit 0, then renew",
        loop(leave, usually=renew_after),
        replace(gone(2), says=("renew", "rank 2 ended after")),
        but={2: Expected((SystemExit,), code=0)},
    ),
    Row("destroy early, process lives on", loop(destroy), gone(2), but=_RANK_2_ITSELF),
    Row("exception, uncaught", loop(raise_error), gone(2), but={2: Expected((ValueError,))}),
    Row(
        "exception, process lives on",
        loop(raise_and_live_on),
        told("rank 2", "ValueError", "bad batch"),
        but=_RANK_2_ITSELF,
    ),
    Row("abort", loop(abort), told("rank 2", "the disk is full"), but=_RANK_2_ITSELF),
    Row("uneven batches", loop(end_early), told("rank 2", "after 4 exchanges"), but=_RANK_2_ITSELF),
    Row("SIGSTOP for 2 s", loop(be_stopped), NOTHING),
    Row("SIGSTOP for ever", loop(stop_for_ever), SILENT, but=_RANK_2_ITSELF),
    Row(
        "alive but absent",
        loop(lambda at: live_on(at, DEADLINE + 5)),
        SILENT,
        but=_RANK_2_ITSELF,
    ),
    Row("store's host stopped for ever", loop(stop_for_ever, by=0), WITHOUT_STORE, but={0: None}),
    Row("store killed", loop(lose_the_store), NOTHING, store="outside"),
    Row(
        "store killed, then a skip",
        loop(lose_the_store_and_skip),
        WITHOUT_STORE,
        store="outside",
    ),
    Row(
        "store frozen, then a skip",
        loop(freeze_the_store_and_skip),
        WITHOUT_STORE,
        store="outside",
    ),
)
