"""The doctor ends: within its bounds, and at once when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collectives.cli import doctor, main
from tests.support.launching import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host on which something never answers, for a process that no launcher started."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    over = threading.Event()
    monkeypatch.setattr(doctor, "look", lambda _: over.wait(60))
    monkeypatch.setattr(doctor, "_leave", sys.exit)
    yield
    over.set()


@pytest.mark.usefixtures("hung")
@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGTERM, "doctor: ended by SIGTERM"), (signal.SIGINT, "doctor: interrupted")],
)
def test_a_signal_is_heard_while_something_on_the_host_does_not_answer(
    number: signal.Signals, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    sender = threading.Timer(0.3, os.kill, (os.getpid(), number))
    sender.start()
    begun = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        main(["doctor"])
    sender.join()
    assert time.monotonic() - begun < 5
    assert caught.value.code == 1
    assert text in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("hung")
def test_looking_at_the_host_has_a_bound_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LOOKING", 0.1)
    with pytest.raises(SystemExit) as caught:
        main(["doctor"])
    assert caught.value.code == 1
    assert "looking at this host did not end within 0.1 s" in capsys.readouterr().err


def be_rank_1(port: int, folder: Path) -> subprocess.Popen[str]:
    job = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        [sys.executable, "-m", "collectives", "doctor"],
        env=environment(folder, job),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_signal_ends_a_rank_that_speaks_to_what_is_no_store(tmp_path: Path) -> None:
    """Both at once, since each takes the seconds of an import of torch."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(60)
        ranks = {
            number: be_rank_1(listening.getsockname()[1], tmp_path)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        taken = [listening.accept()[0] for _ in range(6)]  # each: two probes, then torch's client
        took = {}
        for number, rank in ranks.items():
            begun = time.monotonic()
            rank.send_signal(number)
            printed = rank.communicate(timeout=60)
            took[number] = time.monotonic() - begun, rank.returncode, "".join(printed)
        for connection in taken:
            connection.close()
    for seconds, status, text in took.values():
        assert seconds < 3, text
        assert status == 1, text
    assert "ended by SIGTERM" in took[signal.SIGTERM][2]
    assert "doctor: interrupted" in took[signal.SIGINT][2]
