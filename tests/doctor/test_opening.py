"""Opening the store of a job where another program listens, or nobody yet."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from collectives.doctor.logs import recognise
from collectives.doctor.opening import open_bulletin
from collectives.errors import ContextError
from collectives.launcher import Launch

RANKS = [Launch("torchrun", rank, 2, None, 0, one_host=False, job="") for rank in range(2)]


def meet_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(number))


@pytest.fixture
def mute() -> Iterator[int]:
    """Return the port of a program that takes connections and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


def refusal(rank: int, seconds: float, patience: float) -> tuple[str, float]:
    begun = time.monotonic()
    with ExitStack() as stack, pytest.raises(ContextError) as caught:
        open_bulletin(RANKS[rank], seconds, patience, stack)
    return str(caught.value), time.monotonic() - begun


def test_a_listener_that_says_nothing_is_told_long_before_the_timeout(
    mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at(monkeypatch, mute)
    text, took = refusal(1, seconds=60.0, patience=0.6)
    assert f"the store of rank 0 at 127.0.0.1:{mute}" in text
    assert f"sport = :{mute}" in text
    assert took < 10
    known = recognise(text)
    assert known is not None
    assert known.name == "another-program"


def test_the_timeout_holds_where_nobody_doubts_the_listener(
    mute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at(monkeypatch, mute)
    text, took = refusal(1, seconds=0.2, patience=60.0)
    assert "expected the store of rank 0 within 0.2 s" in text
    assert took < 15


def test_a_store_that_comes_late_is_not_taken_for_another_program(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at(monkeypatch, port)
    came = threading.Event()

    def be_rank_0() -> None:
        time.sleep(0.5)  # more than the patience, which a port that nobody has does not try
        with ExitStack() as stack:
            open_bulletin(RANKS[0], 20.0, 0.1, stack)
            came.wait(20.0)

    rank_0 = threading.Thread(target=be_rank_0)
    rank_0.start()
    with ExitStack() as stack:
        board = open_bulletin(RANKS[1], 20.0, 0.1, stack)
        board.post("found", 1, "well")
        assert board.collect("found", [1], 5.0, lambda _: None) == {1: "well"}
    came.set()
    rank_0.join()
