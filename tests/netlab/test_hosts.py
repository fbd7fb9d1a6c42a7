"""The hosts themselves: they reach each other, lose what they should, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from .hosts import Hosts, HostsError

MakeHosts = Callable[[int], Hosts]

# Sends numbered datagrams, and prints how many the other host sent back.
TALK = """
import socket, sys
address, count = sys.argv[1], int(sys.argv[2])
talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talker.settimeout(0.2)
answers = 0
for number in range(count):
    try:
        talker.sendto(b"%d" % number, (address, 7))
        answers += talker.recv(16) == b"%d" % number
    except OSError:
        pass
print(answers)
"""
ECHO = """
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("", 7))
print("ready", flush=True)
while True:
    echo.sendto(*echo.recvfrom(16))
"""


def within(hosts: Hosts, host: int, program: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return ["ip", "netns", "exec", hosts.names[host], *command]


def answers(hosts: Hosts, count: int) -> int:
    """Return how many of so many datagrams from the first host the second one answers."""
    command = within(hosts, 0, TALK, hosts.address(1), count)
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return int(done.stdout)


def namespaces() -> str:
    return subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout


def test_hosts_answer_but_for_what_is_lost_or_cut(make_hosts: MakeHosts) -> None:
    hosts = make_hosts(2)
    with subprocess.Popen(within(hosts, 1, ECHO), stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "ready\n"
            assert answers(hosts, 5) == 5
            hosts.cut(1)
            assert answers(hosts, 5) == 0
            hosts.mend(1)
            assert answers(hosts, 5) > 0
            hosts.cut(0, end="host")
            assert answers(hosts, 5) == 0
            hosts.mend(0, end="host")
            assert answers(hosts, 5) > 0
            hosts.lose(1, 0.5)
            assert 0 < answers(hosts, 40) < 40
            assert hosts.lost(1) > 0
        finally:
            echo.kill()


def test_hosts_are_gone_at_the_end_with_all_that_ran_in_them(make_hosts: MakeHosts) -> None:
    name = make_hosts(1).names[0]  # skips where there are none
    failed = Hosts(2)

    def fail() -> None:
        with failed:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "ready\n"
            raise ZeroDivisionError

    with subprocess.Popen(within(failed, 1, ECHO), stdout=subprocess.PIPE, text=True) as echo:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert echo.wait(10) == -signal.SIGKILL
    assert not any(gone in namespaces() for gone in failed.names)
    assert name in namespaces()


def test_hosts_of_a_process_that_is_gone_are_removed(make_hosts: MakeHosts) -> None:
    make_hosts(1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = f"collectives-{ended.pid}-0-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    assert left in namespaces()
    with Hosts(1):
        assert left not in namespaces()


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(HostsError, match=r"Linux|no 'ip' command.*iproute2"):
        Hosts(2)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostsError, match=r"Linux|only root"):
        Hosts(2)
