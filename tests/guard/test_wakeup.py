"""Signals are heard while the main thread cannot run Python."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collectives.guard.wakeup import Wakeup

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process there")


@contextmanager
def quiet_usr1() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    wakeup = Wakeup()
    with quiet_usr1():
        yield wakeup
    wakeup.close()
    after = signal.set_wakeup_fd(before)
    assert after == before, "the descriptor was not given back"


def test_a_signal_ends_the_wait_and_is_named(wakeup: Wakeup) -> None:
    wakeup.listen()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert wakeup.wait(20.0) == [signal.SIGUSR1]
    assert wakeup.wait(0.0) == []


def test_a_nudge_ends_the_wait_and_is_no_signal(wakeup: Wakeup) -> None:
    threading.Timer(0.05, wakeup.nudge).start()
    begun = time.monotonic()
    assert wakeup.wait(20.0) == []
    assert time.monotonic() - begun < 10


def test_who_had_the_descriptor_before_hears_the_signals_too(wakeup: Wakeup) -> None:
    """As asyncio, and Jupyter with it."""
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    outer = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    try:
        wakeup.listen()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wakeup.wait(20.0) == [signal.SIGUSR1]
        theirs.settimeout(20.0)
        assert theirs.recv(10) == bytes([signal.SIGUSR1])
        wakeup.forget()
        assert signal.set_wakeup_fd(outer) == ours.fileno()
    finally:
        theirs.close()
        ours.close()


def test_it_listens_again_where_somebody_took_its_place(wakeup: Wakeup) -> None:
    wakeup.listen()
    signal.set_wakeup_fd(-1)
    wakeup.listen()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert wakeup.wait(20.0) == [signal.SIGUSR1]


def test_another_thread_cannot_listen_and_is_not_told_off(wakeup: Wakeup) -> None:
    errors: list[BaseException] = []

    def listen() -> None:
        try:
            wakeup.listen()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert errors == []
