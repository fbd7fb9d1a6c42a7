"""What launchers' variables say. Sources: facts of torchrun, mpirun and srun environments."""

from __future__ import annotations

import pytest

from collectives.launcher import (
    find_job,
    find_launch,
    find_place,
    has_agent_store,
    may_restart,
    restart_count,
    unfinished_launch,
    variables_of,
)

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-17@1",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "8652",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}

# Kubeflow's, for torchrun.
POD = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a"}
NOT_STARTED = "is for torchrun, which did not start this process"
NO_SUCH_RANK = "is not below 4, the number of processes of the job"


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [(TORCHRUN, "torchrun"), (OPEN_MPI, "Open MPI"), (HYDRA, "mpirun (PMI)"), (SRUN, "srun")],
)
def test_each_launcher_gives_rank_size_local_rank_and_node(
    environ: dict[str, str], launcher: str
) -> None:
    launch = find_launch(environ)
    assert launch is not None
    assert launch.launcher == launcher
    assert (launch.rank, launch.size, launch.local_rank, launch.node_rank) == (3, 4, 1, 1)
    assert not launch.one_host
    assert set(variables_of(launcher)) <= environ.keys()


@pytest.mark.parametrize(
    "environ",
    [
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"},
        {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {**HYDRA, "MPI_LOCALNRANKS": "4"},
        {**SRUN, "SLURM_STEP_NUM_NODES": "1"},
    ],
)
def test_processes_on_one_host_are_known_to_be(environ: dict[str, str]) -> None:
    launch = find_launch(environ)
    assert launch is not None
    assert launch.one_host


def test_torchrun_inside_srun_and_mpirun_inside_slurm_come_before_slurm() -> None:
    agent = {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    for inner, rank in ((TORCHRUN, 3), (OPEN_MPI, 3), (HYDRA, 3)):
        launch = find_launch({**agent, **inner})
        assert launch is not None
        assert (launch.rank, launch.size) == (rank, 4)


def test_srun_with_pmi2_takes_the_local_rank_from_slurm() -> None:
    launch = find_launch({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"})
    assert launch is not None
    assert (launch.launcher, launch.local_rank) == ("srun", 1)


def test_a_job_on_pods_without_a_local_rank_is_found_without_one() -> None:
    launch = find_launch({"RANK": "1", "WORLD_SIZE": "2"})
    assert launch is not None
    assert (launch.rank, launch.size, launch.local_rank) == (1, 2, None)


def test_a_pod_of_kubeflow_has_one_process_unless_torchrun_says_otherwise() -> None:
    pod = {**POD, "PET_NNODES": "4", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
    launch = find_launch({**pod, "RANK": "3", "WORLD_SIZE": "4"})
    assert launch is not None
    assert (launch.launcher, launch.rank, launch.size) == ("Kubeflow", 3, 4)
    assert (launch.local_rank, launch.node_rank, launch.one_host) == (0, 3, False)
    assert variables_of("Kubeflow") == ("RANK", "WORLD_SIZE")
    by_torchrun = find_launch({**pod, **TORCHRUN})
    assert by_torchrun is not None
    assert (by_torchrun.launcher, by_torchrun.local_rank) == ("torchrun", 1)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"},  # Lightning's own launcher
        {"LOCAL_RANK": "1"},
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # a shell that salloc opened
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
    ],
)
def test_variables_that_no_launcher_would_set_like_this_are_no_launch(
    environ: dict[str, str],
) -> None:
    assert find_launch(environ) is None


def test_an_interactive_step_of_an_allocation_of_four_is_one_process() -> None:
    launch = find_launch(
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
    )
    assert launch is not None
    assert launch.size == 1


def test_a_batch_script_is_one_process_and_its_srun_steps_are_several() -> None:
    script = {
        "ENVIRONMENT": "BATCH",
        "SLURM_JOB_ID": "8652",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "4",
    }
    assert find_launch(script) is None
    step = find_launch({**script, **SRUN})
    assert step is not None
    assert step.size == 4


def test_slurm_variables_set_by_hand_need_no_step() -> None:
    by_hand = {name: SRUN[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")}
    launch = find_launch(by_hand)
    assert launch is not None
    assert (launch.rank, launch.size) == (3, 4)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "1"}, "RANK=1 is set, WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, RANK is not"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1 is set, RANK and WORLD_SIZE are not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK: expected a number, got 'one'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE: expected a number, got ''"),
        ({"SLURM_PROCID": "4", "SLURM_NTASKS": "4"}, f"SLURM_PROCID=4 {NO_SUCH_RANK}"),
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "4"},
            f"OMPI_COMM_WORLD_RANK=5 {NO_SUCH_RANK}",
        ),
        ({"PMI_RANK": "4", "PMI_SIZE": "4"}, f"PMI_RANK=4 {NO_SUCH_RANK}"),
        ({**POD, "PET_NNODES": "2"}, f"PET_NNODES=2 {NOT_STARTED}"),
        ({**POD, "PET_NNODES": "1:4"}, f"PET_NNODES=1:4 {NOT_STARTED}"),
        ({**POD, "PET_NPROC_PER_NODE": "2"}, f"PET_NPROC_PER_NODE=2 {NOT_STARTED}"),
        (
            {**POD, "PET_NPROC_PER_NODE": "2", "RANK": "0", "WORLD_SIZE": "4"},
            f"PET_NPROC_PER_NODE=2 {NOT_STARTED}",
        ),
    ],
)
def test_what_is_missing_in_the_variables_is_named(environ: dict[str, str], expected: str) -> None:
    assert unfinished_launch(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0"},
        {"WORLD_SIZE": "1"},
        {"LOCAL_RANK": "0"},
        {"RANK": "1", "WORLD_SIZE": "2"},
        POD,
        {**POD, "PET_NPROC_PER_NODE": "gpu"},
        {**POD, "PET_NNODES": "2", "RANK": "1", "WORLD_SIZE": "2"},  # a process in each pod
        {**POD, **TORCHRUN, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"},
    ],
)
def test_variables_that_fit_a_single_process_or_a_job_are_complete(
    environ: dict[str, str],
) -> None:
    assert unfinished_launch(environ) == ""


def test_the_place_comes_from_the_launcher_only_if_it_speaks_of_the_same_rank() -> None:
    assert find_place(TORCHRUN, 3, 4) == (1, 1)
    assert find_place({**TORCHRUN, "NODE_RANK": "0"}, 2, 3) == (1, 0)
    assert find_place({"LOCAL_RANK": "1", "NODE_RANK": "2"}, 5, 6) == (1, 2)
    assert find_place({}, 5, 6) == (5, 0)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        (TORCHRUN, ""),  # torchrun's default name, which every job has
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "42"}, "torchrun 42"),
        ({**SRUN, "TORCHELASTIC_RUN_ID": "42"}, "torchrun 42"),
        (OPEN_MPI, "Open MPI prterun-host-17@1"),
        (SRUN, "Slurm 8652.2"),
        ({**SRUN, **TORCHRUN}, "Slurm 8652"),  # each node may have a step of its own
        ({**SRUN, "SLURM_HET_SIZE": "2"}, ""),  # each part has a number of its own
    ],
)
def test_a_job_is_told_from_others_by_what_all_its_ranks_share(
    environ: dict[str, str], expected: str
) -> None:
    assert find_job(environ) == expected


def test_the_first_attempt_is_number_0_whoever_started_it() -> None:
    assert restart_count({}) == restart_count({"TORCHELASTIC_RESTART_COUNT": "0"}) == 0
    assert restart_count({"TORCHELASTIC_RESTART_COUNT": "3"}) == 3


def test_only_torchrun_with_restarts_keeps_a_store_for_several_attempts() -> None:
    assert not has_agent_store({})
    assert not has_agent_store({"TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert has_agent_store({"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert not may_restart({})
    assert not may_restart({"TORCHELASTIC_MAX_RESTARTS": "0"})
    assert may_restart({"TORCHELASTIC_MAX_RESTARTS": "3"})
