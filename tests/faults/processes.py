"""Signals, forks, threads, copies: what happens to processes and objects."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from signal import SIGINT, SIGTERM
from types import FrameType

import torch

from collectives.errors import (
    ArgumentError,
    CollectivesError,
    ContextError,
    ExchangeError,
    PendingDropped,
)

from .loop import Loop, loop
from .losses import gone, told
from .player import Player
from .row import NOTHING, Expected, Row

__all__ = ["PROCESSES"]


class Terminated(BaseException):
    """Raised by a handler of SIGTERM."""


def handle_sigterm(_signum: int, _frame: FrameType | None) -> None:
    raise Terminated


def signal_rank_1(what: signal.Signals, at: Loop) -> None:
    """Signal rank 1 while it waits for this rank, which comes too late for it."""
    time.sleep(1.0)
    at.player.send_signal(1, what)
    time.sleep(1.2)
    at.both_ways()


def signalled(what: signal.Signals, *, handled: bool = False) -> Callable[[Player], None]:
    """Return a loop in which rank 1 gets a signal while it waits."""
    inner = loop(lambda at: signal_rank_1(what, at), block=True)

    def program(player: Player) -> None:
        if handled:
            signal.signal(what, handle_sigterm)
        inner(player)

    return program


def use_in_a_fork(at: Loop) -> None:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            at.both_ways()
        except CollectivesError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the exchange in the fork did not raise"
    assert time.monotonic() - began < 1.0, "the exchange in the fork did not raise at once"
    at.both_ways()


def use_in_a_thread(at: Loop) -> None:
    raised: list[ExchangeError] = []

    def target() -> None:
        try:
            at.both_ways()
        except ExchangeError as error:
            raised.append(error)

    thread = threading.Thread(target=target, name="second")
    thread.start()
    thread.join()
    assert raised, "the exchange in a second thread did not raise"
    assert "'second'" in str(raised[0])
    at.both_ways()


def drop_a_pending(at: Loop) -> None:
    left, right = at.payload()
    at.exchange.start_exchange(to_left=left, to_right=right)


def send_beyond_the_last_rank(at: Loop) -> None:
    at.exchange.permute(torch.ones(64), [(0, 1), (1, 9)])


def pickled(player: Player) -> None:
    """Use an Exchange on ranks 0 and 1, and its copy in process 2, which is no rank."""
    if player.number == 2:
        player.wait_for("exchange.pickle")
        copy = pickle.loads((player.folder / "exchange.pickle").read_bytes())
        player.fault()
        copy.shift(torch.ones(1))
    with player.joined(size=2) as adapter:
        at = Loop(player, adapter, player.exchange(adapter), (64,))
        at.both_ways()
        if player.number == 0:
            draft = player.folder / "draft.pickle"
            draft.write_bytes(pickle.dumps(at.exchange))
            draft.rename(player.folder / "exchange.pickle")
        at.both_ways()


PROCESSES = (
    Row(
        "Ctrl-C",
        signalled(SIGINT),
        told("rank 1"),
        but={1: Expected((KeyboardInterrupt,), within=1.0)},
        store="outside",
    ),
    Row(
        "SIGTERM, handler raises",
        signalled(SIGTERM, handled=True),
        told("rank 1"),
        but={1: Expected((Terminated,), within=1.0)},
        store="outside",
    ),
    Row("SIGTERM, default action", signalled(SIGTERM), gone(1), but={1: Expected(code=-SIGTERM)}),
    Row("fork uses the exchange", loop(use_in_a_fork), NOTHING),
    Row(
        "pickled copy in another process",
        pickled,
        NOTHING,
        but={2: Expected((ContextError,), says=("pickled in another process",))},
        size=3,
    ),
    Row("second thread", loop(use_in_a_thread), NOTHING),
    Row(
        "Pending dropped",
        loop(drop_a_pending, block=True),
        told("rank 2", "PendingDropped"),
        but={2: Expected((PendingDropped,), within=1.0, says=("exchange(", "wait()"))},
    ),
    Row(
        "peer out of range",
        loop(send_beyond_the_last_rank, block=True),
        told("rank 2", "ArgumentError"),
        but={2: Expected((ArgumentError,), says=("permute", "9", "4"))},
    ),
)
