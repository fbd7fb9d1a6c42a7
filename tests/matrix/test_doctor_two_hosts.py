"""The doctor over two hosts, where the host's name is a loopback address to everybody."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.netlab.hosts import INTERFACE, Hosts
from tests.support.launching import environment

LIMIT = 150.0  # seconds; 10 to 20 on an idle machine


def doctor(hosts: Hosts, folder: Path, **environ: str) -> tuple[list[int], list[str]]:
    """Start torchrun with the doctor on both hosts; return how they ended and what they said."""
    known = environment(folder, {"COLUMNS": "100"})
    del known["GLOO_SOCKET_IFNAME"]  # what gloo takes by itself is looked at
    known |= environ
    logs = [folder / f"host-{host}.log" for host in range(2)]
    with ExitStack() as stack:
        stack.callback(hosts.close)  # ends whatever still runs there, before it is waited for
        agents = []
        for host, log in enumerate(logs):
            output = stack.enter_context(log.open("w"))
            command = [
                *("ip", "netns", "exec", hosts.names[host]),
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *(f"--node-rank={host}", "--nproc-per-node=1", "--master-port=29500"),
                *(f"--master-addr={hosts.address(0)}", "-m", "collectives", "doctor"),
                *("--timeout", "20"),
            ]
            agents.append(
                subprocess.Popen(command, env=known, stdout=output, stderr=subprocess.STDOUT)
            )
        codes = [agent.wait(LIMIT) for agent in agents]
    return codes, [log.read_text() for log in logs]


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_hosts_whose_names_are_loopback_addresses_are_told_which_interface_to_name(
    hosts: Hosts, tmp_path: Path
) -> None:
    codes, said = doctor(hosts, tmp_path)
    assert codes[0] == 1, said
    words = " ".join(said[0].split())
    assert "resolves to 127." in words, said[0]
    assert "but the job has several hosts" in words
    assert "set GLOO_SOCKET_IFNAME on every host" in words.replace("Set", "set")
    assert f"{INTERFACE} ({hosts.address(0)})" in words


@pytest.mark.cell("doctor", "raw")
@pytest.mark.matrix
def test_with_the_interface_named_all_is_well(hosts: Hosts, tmp_path: Path) -> None:
    codes, said = doctor(hosts, tmp_path, GLOO_SOCKET_IFNAME=INTERFACE)
    assert codes == [0, 0], said
    assert "All is well: 2 ranks exchange the right values" in said[0]
    for host in range(2):
        assert f"{INTERFACE} {hosts.address(host)}  ok" in said[0]
