"""torchrun over two hosts, which are network namespaces of this machine; two ranks on each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.netlab.hosts import INTERFACE, Hosts
from tests.support.cells import runtimes
from tests.support.launching import check_ring, environment, python, run_all


def on_both(hosts: Hosts, command: list[str], *options: str) -> list[list[str]]:
    """Return the command of torchrun on each host; what comes after python stays."""
    program, rest = command[0], command[1:]
    launcher = (program, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2")
    return [
        [
            *("ip", "netns", "exec", name, *launcher),
            *(option.format(host=host, is_host=str(host == 0).lower()) for option in options),
            f"--local-addr={hosts.address(host)}",
            *rest,
        ]
        for host, name in enumerate(hosts.names)
    ]


def start(folder: Path, commands: list[list[str]]) -> str:
    variables = {"GLOO_SOCKET_IFNAME": INTERFACE, "HOSTS": "2"}
    return run_all(folder, commands, [environment(folder, variables)] * 2)


def static(hosts: Hosts) -> tuple[str, ...]:
    return ("--node-rank={host}", f"--master-addr={hosts.address(0)}", "--master-port=29500")


def elastic(hosts: Hosts) -> tuple[str, ...]:
    """Nodes find each other, and again after a failure; host 0 holds the store."""
    return (
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={hosts.address(0)}:29400", "--rdzv-id=job"),
        *("--rdzv-conf=is_host={is_host}", "--max-restarts=2"),
    )


@pytest.mark.cell("torchrun on two hosts", "raw")
def test_ranks_of_two_hosts_exchange_rightly(hosts: Hosts, tmp_path: Path) -> None:
    start(tmp_path, on_both(hosts, python("raw", tmp_path), *static(hosts)))
    check_ring(tmp_path, size=4)


@pytest.mark.matrix
@runtimes("torchrun on two hosts", "lightning", "fabric")
def test_a_trainer_and_a_fabric_reach_over_two_hosts(
    runtime: str, hosts: Hosts, tmp_path: Path
) -> None:
    start(tmp_path, on_both(hosts, python(runtime, tmp_path), *static(hosts)))
    check_ring(tmp_path, size=4)


@pytest.mark.matrix
@pytest.mark.cell("torchrun --max-restarts: a rank is killed, all go on", "raw")
@pytest.mark.parametrize("linger", ["0", "5"])
def test_two_hosts_go_on_after_a_rank_of_the_second_was_killed(
    linger: str, hosts: Hosts, tmp_path: Path
) -> None:
    """Where the ranks of the first host end by themselves; and where its agent restarts them well,
    and counts no failure."""
    script = str(Path(__file__).parents[1] / "support" / "killed_once.py")
    commands = on_both(hosts, [sys.executable, script, str(tmp_path), linger], *elastic(hosts))
    output = start(tmp_path, commands)
    assert output.count("ended well") == 4, output
    check_ring(tmp_path / "last", size=4)
