"""Plays one row: forks its processes, listens to them, signals them, ends what does not end.

Runs in a process of its own, which has imported everything and has no threads.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not listed

from .player import Player
from .row import JOIN_TIMEOUT, STORE, Over, Row

__all__ = ["Director", "Order"]

_POLL = 0.01


@dataclass(frozen=True)
class Order:
    """What to play: the row, with or without the guard, over what, and where files go."""

    row: Row
    verify: Literal["auto", "off"]
    over: Over
    folder: Path


@dataclass
class Director:
    """Directs one run of a row; see the module."""

    order: Order
    pids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    _due: list[tuple[float, int, int]] = field(default_factory=list)
    _unread: bytes = b""

    def __post_init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def direct(self) -> Callable[[], None]:
        """Play the row, write ``result.json`` and end the process.

        Returns:
            What to run, in each of the processes that it forks: they return from here, so that
            they end as any Python program ends.
        """
        row = self.order.row
        environment = {"COLLECTIVES_SAME_HOST": "off" if self.order.over == "gloo" else "on"}
        if row.store == "outside":
            if part := self._fork(STORE, _host_store):
                return part
            environment |= _address(self._port(), TORCHELASTIC_USE_AGENT_STORE="True")
        elif row.store == "port":
            environment |= _address(_free_port())
        os.environ.update(environment)
        for number in range(row.size):
            if part := self._fork(number, row.program):
                return part
        return self._finish()

    def _fork(self, number: int, program: Callable[[Player], None]) -> Callable[[], None] | None:
        """Fork a process; return what it runs in it, and ``None`` here."""
        pid = os.fork()
        if pid:
            self.pids[number] = pid
            return None
        os.close(self._read_end)
        _redirect_output(self.order.folder / f"{number}.log")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        order = self.order
        player = Player(order.row, number, order.verify, order.folder, self._write_end)
        return lambda: player.perform(program)

    def _finish(self) -> NoReturn:
        """Never return: this frame's process has nothing else to do."""
        code = 1
        try:
            began = time.monotonic()
            self._watch(began + self.order.row.limit)
            self._write_result(time.monotonic() - began)
            code = 0
        except BaseException:  # noqa: BLE001 - the last frame of this process
            traceback.print_exc()
        finally:
            self._kill_all()
            os._exit(code)

    def _port(self) -> int:
        deadline = time.monotonic() + JOIN_TIMEOUT
        while time.monotonic() < deadline:
            self._listen()
            for event in self.events:
                if event["kind"] == "port":
                    return int(event["port"])
        raise TimeoutError("the store did not start")

    def _watch(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._listen()
            self._send_what_is_due()
            self._reap()
            if self.order.row.judged.keys() <= self.ended.keys():
                self._listen()  # to what they said last
                return

    def _listen(self) -> None:
        ready, _, _ = select.select([self._read_end], [], [], _POLL)
        if not ready:
            return
        *lines, self._unread = (self._unread + os.read(self._read_end, 1 << 20)).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events.append(event)
            if event["kind"] == "signal":
                self._signal(event["to"], event["what"])
                if event["then"] is not None:
                    self._due.append((event["at"] + event["after"], event["to"], event["then"]))

    def _send_what_is_due(self) -> None:
        for cue in [cue for cue in self._due if cue[0] <= time.monotonic()]:
            self._due.remove(cue)
            self._signal(cue[1], cue[2])

    def _signal(self, number: int, what: int) -> None:
        self.events.append({"by": number, "at": time.monotonic(), "kind": "fault"})
        if number not in self.ended:
            os.kill(self.pids[number], what)

    def _reap(self) -> None:
        for number, pid in self.pids.items():
            if number not in self.ended:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.ended[number] = os.waitstatus_to_exitcode(status)

    def _write_result(self, seconds: float) -> None:
        self._ask_where_they_are()
        result = {"ended": self.ended, "events": self.events, "seconds": seconds}
        draft = self.order.folder / "draft.json"
        draft.write_text(json.dumps(result))
        draft.rename(self.order.folder / "result.json")

    def _ask_where_they_are(self) -> None:
        """Let those who should have ended write their stacks into their logs."""
        late = [n for n in self.order.row.judged if n not in self.ended]
        for number in late:
            os.kill(self.pids[number], signal.SIGUSR1)
        if late:
            time.sleep(0.5)

    def _kill_all(self) -> None:
        for number, pid in self.pids.items():
            if number not in self.ended:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _host_store(player: Player) -> None:
    """Be the agent of a launcher: host the store, and nothing else."""
    timeout = timedelta(seconds=JOIN_TIMEOUT)
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout, wait_for_workers=False)
    player.tell("port", port=store.port)
    signal.pause()


def _address(port: int, **more: str) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _redirect_output(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, sys.stdout.fileno())
    os.dup2(fd, sys.stderr.fileno())
    os.close(fd)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
