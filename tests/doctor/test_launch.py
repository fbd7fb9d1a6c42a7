"""What launchers have set, and what is missing."""

from __future__ import annotations

import pytest

from collectives.doctor.checks.launch import outranked, tasks_per_node
from tests.support.snapshots import MET, TORCHRUN, found, one

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "1",
    "SLURM_JOB_NAME": "train",
}
POD = {"RANK": "1", "WORLD_SIZE": "2", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
SRUN = {**SLURM, "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}  # fmt: skip


def test_nothing_is_wrong_with_a_healthy_host_under_any_launcher() -> None:
    assert found() == []
    assert found(TORCHRUN, **MET) == []
    assert found(SRUN) == []


@pytest.mark.parametrize(
    ("environ", "title"),
    [
        ({"RANK": "1"}, "RANK=1 is set, WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, RANK is not"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 is set, RANK and WORLD_SIZE are not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK: expected a number, got 'one'"),
    ],
)
def test_half_a_launch_is_named_with_both_ways_out(environ: dict[str, str], title: str) -> None:
    finding = one(environ)
    assert (finding.severity, finding.title) == ("problem", title)
    assert "torchrun --nproc-per-node N" in finding.remedy
    assert "MASTER_ADDR and MASTER_PORT" in finding.remedy


@pytest.mark.parametrize(
    ("environ", "detail", "topic"),
    [
        ({"RANK": "1"}, "torch says: environment variable WORLD_SIZE expected", "no-environment"),
        ({"WORLD_SIZE": "2"}, "torch says: environment variable RANK expected", "no-environment"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "Ranks are counted from 0: the last one is 1.", ""),
        ({"RANK": "x"}, "torch says: invalid literal for int() with base 10: 'x'", ""),
        ({"RANK": "0", "WORLD_SIZE": "2", "PET_NPROC_PER_NODE": "2"}, "", ""),
    ],
)
def test_what_comes_of_it_is_the_error_of_that_mistake(
    environ: dict[str, str], detail: str, topic: str
) -> None:
    finding = next(f for f in found(environ) if f.kind == "half_a_launch")
    assert finding.detail.startswith(detail)
    assert (bool(finding.detail), finding.topic) == (bool(detail), topic)


def test_rank_0_without_a_size_is_a_warning_since_it_takes_itself_for_the_only_one() -> None:
    finding = one({"RANK": "0"})
    assert (finding.severity, finding.kind) == ("warning", "rank_0_of_nothing")
    assert "takes itself for the only one" in finding.title
    assert found({"RANK": "0", "WORLD_SIZE": "1"}) == []
    assert found({**SRUN, "RANK": "0"}) == []


def test_a_process_of_lightnings_own_launcher_is_told_that_the_trainer_knows_better() -> None:
    finding = one({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"})
    assert "Lightning's own launcher" in finding.detail


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "MASTER_ADDR and MASTER_PORT are not"),
        ({"MASTER_PORT": "29500"}, "MASTER_ADDR is not"),
        ({"MASTER_ADDR": "localhost"}, "MASTER_PORT is not"),
        ({"MASTER_ADDR": "", "MASTER_PORT": "29500"}, "MASTER_ADDR is not"),
    ],
)
def test_ranks_without_an_address_are_told_what_to_set(given: dict[str, str], missing: str) -> None:
    for by_hand in ({"RANK": "1", "WORLD_SIZE": "2"}, POD):
        finding = one({**by_hand, **given})
        assert finding.title == f"RANK=1 and WORLD_SIZE=2 are set, {missing}"


def test_a_batch_script_without_srun_is_told_to_use_it() -> None:
    finding = one(SLURM)
    assert finding.severity == "problem"
    assert finding.title == "Slurm gave this job 4 tasks, but srun did not start this process"
    assert "`srun`" in finding.remedy
    assert one({**SLURM, "SLURM_JOB_NAME": "bash"}).severity == "warning"  # a shell of salloc


def test_ntasks_alone_is_what_lightning_refuses() -> None:
    environ = {k: v for k, v in SRUN.items() if k != "SLURM_NTASKS_PER_NODE"}
    finding = one({**environ, "SLURM_STEP_NUM_NODES": "2"})
    assert finding.severity == "warning"
    assert "--ntasks-per-node=2 --nodes=2" in finding.remedy


def test_srun_that_starts_fewer_tasks_than_lightning_believes_in_is_told_so() -> None:
    finding = one({**SRUN, "SLURM_NTASKS_PER_NODE": "8"})
    assert "--ntasks-per-node=8 on 1 node(s), but srun started 4 task(s)" in finding.title
    assert "8 ranks" in finding.detail


def test_several_torchruns_on_a_node_are_several_jobs() -> None:
    environ = {**TORCHRUN, "SLURM_STEP_NUM_TASKS": "2"}
    assert "srun started torchrun 2 times" in one(environ, **MET).title


def test_a_restart_over_torchruns_shared_store_is_warned_of_until_the_variable_is_set() -> None:
    environ = {**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "3"}
    finding = one(environ, **MET)
    assert finding.severity == "warning"
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in finding.remedy
    assert "pytorch/pytorch#135712" in finding.see
    assert found({**environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, **MET) == []


def test_launchers_that_are_not_heeded_are_named() -> None:
    assert outranked({**SRUN, **TORCHRUN}) == ["srun"]
    assert outranked(SRUN) == []
    assert outranked(POD) == []
    assert outranked({**SRUN, **POD}) == ["srun"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (2, 1)),
        ({**TORCHRUN, "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (4, 2)),
        (SRUN, (4, 1)),
        (POD, (1, 2)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "2"}, (2, 2)),
        ({}, None),
    ],
)
def test_what_a_trainer_needs_to_take_part_follows_from_the_launcher(
    environ: dict[str, str], expected: tuple[int, int] | None
) -> None:
    assert tasks_per_node(environ) == expected
