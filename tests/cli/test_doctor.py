"""The command: one process, a log, and what it prints for people and for machines."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from collectives.cli import doctor, main
from collectives.cli.output import Progress, say, show
from collectives.doctor.screen import Line, Span

LOG = "step 1\n[rank1]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.3]:2318\n"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, and a terminal of 80 columns."""
    for name in list(os.environ):
        if name.startswith(
            ("RANK", "WORLD_", "LOCAL_", "MASTER_", "SLURM", "OMPI", "PMI", "NCCL_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_two_real_ranks_of_this_host_are_timed_and_the_screen_has_all_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["doctor"])
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert status == 0, printed.out
    assert lines[0].startswith("torch-collectives doctor  ")
    assert lines[1].startswith("All is well: two ranks exchange 4 B in ")
    titles = [line for line in lines if line and not line.startswith(" ")]
    for title in ("Software", "Devices", "Launch", "Network", "Host"):
        assert title in titles
    assert "  values             right, forward and backward" in lines
    assert printed.err.splitlines()[-1] == "doctor: exchanging"


def test_where_no_ranks_were_started_not_all_is_called_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--no-self-test"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "No problem found; no ranks were started"


def test_a_problem_comes_first_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in launched.items():
            monkeypatch.setenv(name, value)
        assert main(["doctor", "--no-self-test"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "1 problem"
    assert lines[3] == f"PROBLEM  MASTER_PORT={port} is in use on this host"
    assert f"  meets at           127.0.0.1:{port}: taken" in lines


def test_json_has_findings_and_facts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth99")
    assert main(["doctor", "--no-self-test", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert [one["topic"] for one in found["findings"]] == ["gloo-interface"]
    assert found["facts"]["Network"]["gloo uses"].startswith("no interface 'eth99'")


@pytest.mark.parametrize("way", ["argument", "option", "stdin"])
def test_a_log_is_read_from_wherever_it_comes(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    monkeypatch.setattr("sys.stdin", io.StringIO(LOG))
    arguments = {"argument": [str(path)], "option": ["--log", str(path)], "stdin": ["-"]}
    assert main(["doctor", *arguments[way]]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  2 lines")
    assert lines[1].startswith("1 known error, which follows from another")
    assert "FOLLOWS  Another rank ended or closed its connections" in lines


def test_a_log_in_which_nothing_is_known_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"loss 0.1\n\xff\xfe not of any code\n")
    assert main(["doctor", str(path)]) == 0
    assert "No known error in it" in capsys.readouterr().out
    assert main(["doctor", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "lines": 2, "known": []}


def test_a_log_from_a_pipe_is_read_as_the_same_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"loss 0.1\rloss 0.2\n\xff\xfe not of any code\n" + LOG.encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes()), "utf-8"))
    printed = []
    for name in (str(path), "-"):
        assert main(["doctor", name, "--json"]) == 1
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]
    assert (printed[0]["lines"], printed[0]["known"][0]["line"]) == (4, 4)


def test_a_log_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "/nowhere/train.log"]) == 1
    assert capsys.readouterr().err.startswith("doctor: /nowhere/train.log: No such file")


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_timeout_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", f"--timeout={text}"])
    expected = f"--timeout: expected a number of seconds above 0, got '{text}'; leave it out for 30"
    assert expected in capsys.readouterr().err


def test_a_launcher_that_ends_rank_0_while_it_reports_gets_the_whole_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)

    def end_it(*_: object, **__: object) -> list[Line]:
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    monkeypatch.setattr(doctor, "meet", lambda *_, **__: None)
    monkeypatch.setattr(doctor, "_end_at_last", lambda _: None)
    monkeypatch.setattr(doctor, "_leave", sys.exit)
    monkeypatch.setattr(doctor, "ranks_lines", end_it)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        main(["doctor"])
    assert caught.value.code == 1
    assert "ranks 1 and 2 of 3 did not report" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


LINES: list[Line] = [(Span("PROBLEM", "problem"), Span(" \x1b[2J[bold]no markup[/]")), ()]


def test_a_terminal_gets_colours_and_no_escape_sequence_of_anybody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    show(LINES, terminal)
    assert terminal.getvalue() == "\x1b[1;31mPROBLEM\x1b[0m ?[2J[bold]no markup[/]\n"


def test_public_reports_are_links_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    show([(Span("pytorch/gloo#511, a/b#1", "see"),)], terminal)
    assert ";https://github.com/pytorch/gloo/issues/511\x1b\\" in terminal.getvalue()
    assert terminal.getvalue().count("https://") == 2


def test_a_file_or_a_python_without_rich_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    show(LINES, file)
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    terminal = Terminal()
    show(LINES, terminal)
    assert file.getvalue() == terminal.getvalue() == "PROBLEM ?[2J[bold]no markup[/]\n"


def test_letters_that_a_stream_has_no_code_for_are_replaced() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    say("Grüße \ud800", stream)
    assert buffer.getvalue() == b"Gr??e ?\n"


def test_progress_moves_on_a_terminal_and_is_a_line_for_each_thing_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stream, expected in (
        (Terminal(), "\r\x1b[Kdoctor: starting (0 s)\r\x1b[Kdoctor: starting (1 s)\r\x1b[K"),
        (io.StringIO(), "doctor: starting\n"),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        with Progress("doctor") as progress:
            progress.tell("starting", 0.1)
            progress.tell("starting", 1.1)
        assert stream.getvalue() == expected
