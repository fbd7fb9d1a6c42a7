"""Taking a snapshot: what is found on this host, within a bound."""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from collectives.doctor import gpus, looking, network
from collectives.doctor.looking import look
from collectives.doctor.network import find_interfaces, look_up, probe_port

MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0
GPU1\tNV18\t X \tSYS\tPIX\t0-47\t0
GPU2\tSYS\tSYS\t X \tSYS\t48-95\t1
NIC0\tPIX\tPIX\tSYS\t X \t\t

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_a_snapshot_of_this_process_has_what_torch_and_the_system_say() -> None:
    found = look({"RANK": "1"})
    assert found.torch.version == torch.__version__
    assert "gloo" in found.torch.backends
    assert found.host == socket.gethostname()
    assert 1 <= found.cores <= found.host_cores
    assert found.load >= 0
    assert found.environ == {"RANK": "1"}
    assert found.adapters == ""
    assert found.packages["torch"] == torch.__version__
    assert (found.master, found.port) == (None, None)


def test_the_loopback_is_among_the_interfaces_with_its_address() -> None:
    found = {one.name: one for one in find_interfaces()}
    assert any(one.loopback and one.up for one in found.values())
    if os.uname().sysname == "Linux":
        assert "127.0.0.1" in found["lo"].addresses


def test_a_name_is_looked_up_forth_and_back() -> None:
    found = look_up("localhost")
    assert {"127.0.0.1", "::1"} & set(found.addresses)
    assert found.back
    nobody = look_up("no-such-host.invalid")
    assert nobody.addresses == ()
    assert nobody.error


def test_a_resolver_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_PATIENCE", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3))
    begun = time.monotonic()
    assert look_up("slow").error == "no answer within 0.1 s"
    assert time.monotonic() - begun < 2


def test_a_name_that_is_looked_up_for_ever_does_not_hold_up_the_probe_of_its_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "_PATIENCE", 0.1)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(3))
    begun = time.monotonic()
    found = probe_port("29500", "slow")
    assert (found.state, found.error) == ("silent", "no answer within 0.1 s")
    assert time.monotonic() - begun < 2


@pytest.fixture
def listener() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


def test_a_port_is_probed_as_rank_0_and_as_the_others_would_use_it(listener: int) -> None:
    assert probe_port(str(listener), None).state == "taken"
    assert probe_port(str(listener), "127.0.0.1").state == "answers"
    with closing(socket.create_server(("127.0.0.1", 0))) as ended:
        port = str(ended.getsockname()[1])
    assert probe_port(port, None).state == "free"
    assert probe_port(port, "127.0.0.1").state == "silent"
    assert probe_port("http", None).state == "not tried"


@pytest.mark.parametrize(
    ("number", "state"),
    [(errno.EACCES, "not allowed"), (errno.EADDRINUSE, "taken"), (errno.EMFILE, "not tried")],
)
def test_a_port_is_taken_only_where_the_system_says_so(
    number: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_server", refuse)
    found = probe_port("29500", None)
    assert (found.state, found.error) == (state, os.strerror(number))


def test_the_port_of_a_job_is_probed_unless_torchrun_holds_it(listener: int) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environ["MASTER_PORT"] = str(listener)
    for more, state in (
        ({}, "taken"),
        ({"RANK": "1"}, "answers"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "not tried"),
    ):
        found = look({**environ, **more})
        assert found.port is not None
        assert found.port.state == state
        assert found.master is not None
        assert found.master.addresses == ("127.0.0.1",)


def test_a_package_adapters_that_comes_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("raise RuntimeError('imported')")
    spec = importlib.util.spec_from_file_location(
        "adapters", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    assert str(tmp_path) in looking._what_hides_the_adapters()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert looking._what_hides_the_adapters() == "no package of that name is found"


def test_a_folder_that_others_can_enter_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert look({}).folder == ""
    (tmp_path / f"torch-collectives-{os.getuid()}").chmod(0o777)
    assert "only this user can enter" in look({}).folder


def test_settings_are_told_as_an_exchange_refuses_them(tmp_path: Path) -> None:
    right = {
        "COLLECTIVES_STALL": "",
        "COLLECTIVES_SIGNALS": "OFF",
        "COLLECTIVES_FLIGHT_RECORD": str(tmp_path),
    }
    assert look(right).settings == ()
    wrong = {
        "COLLECTIVES_STALL": "soon",
        "COLLECTIVES_SIGNALS": "SIGTRM",
        "COLLECTIVES_FLIGHT_RECORD": "/dev/null",
    }
    assert [text.partition(":")[0] for text in look(wrong).settings] == list(wrong)


def test_the_links_of_gpus_are_counted_from_the_matrix_of_the_driver() -> None:
    assert gpus.read_links(MATRIX) == {"SYS": 2, "NV18": 1}
    assert gpus.read_links("no devices were found") == {}


def test_the_driver_is_asked_and_one_that_does_not_answer_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matrix").write_text(MATRIX)
    tool = tmp_path / "nvidia-smi"
    answer = f'case "$1" in topo) cat {tmp_path}/matrix;; *) printf "H200\\nH200\\nH200\\n";; esac'
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert gpus.find_gpus() == (("H200",) * 3, {"SYS": 2, "NV18": 1})
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus.find_gpus() == ((), {})
    monkeypatch.setattr(gpus, "_PATIENCE", 0.2)
    tool.write_text("#!/bin/sh\nexec sleep 20\n")
    begun = time.monotonic()
    assert gpus.find_gpus() == ((), {})
    assert time.monotonic() - begun < 5
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert gpus.find_gpus() == ((), {})


def test_a_tool_that_hangs_in_the_driver_and_cannot_be_killed_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "_PATIENCE", 0.1)
    monkeypatch.setattr(gpus, "_GRACE", 0.1)
    monkeypatch.setattr(gpus, "_run", lambda _: time.sleep(5))
    begun = time.monotonic()
    assert gpus.find_gpus() == ((), {})
    assert time.monotonic() - begun < 4
