"""torchrun over two hosts: once, since each start takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from .hosts import INTERFACE, Hosts

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("launched.py")
LIMIT = 120.0  # seconds; 10 to 20 on an idle machine
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "SLURM_", "OMPI_")


def torchrun(hosts: Hosts, host: int, folder: Path) -> list[str]:
    return [
        *("ip", "netns", "exec", hosts.names[host]),
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={len(hosts.names)}",
        f"--node-rank={host}",
        "--nproc-per-node=2",
        f"--master-addr={hosts.address(0)}",
        "--master-port=29500",
        *(str(SCRIPT), str(folder)),
    ]


def test_torchrun_over_two_hosts_of_two_ranks_exchanges_rightly(
    make_hosts: Callable[[int], Hosts], tmp_path: Path
) -> None:
    hosts = make_hosts(2)
    environment = {n: v for n, v in os.environ.items() if not n.startswith(LAUNCHERS)}
    environment |= {
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
    logs = [tmp_path / f"host-{host}.log" for host in range(2)]
    with ExitStack() as stack:
        stack.callback(hosts.close)  # ends whatever still runs there, before it is waited for
        agents = []
        for host, log in enumerate(logs):
            output = stack.enter_context(log.open("w"))
            command = torchrun(hosts, host, tmp_path)
            agents.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
        codes = [agent.wait(LIMIT) for agent in agents]
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("?.json"))]
    assert found == [[0, 4, 0, 0], [1, 4, 1, 0], [2, 4, 0, 1], [3, 4, 1, 1]]
