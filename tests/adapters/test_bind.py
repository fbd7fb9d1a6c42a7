"""The checks of bind(), one process per test: torch's fake group stands for any rank and size."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from collectives import runtime
from collectives.context import Context
from collectives.errors import ContextError
from tests.support.runtimes import fake_world

HINT = "call launch() first"

# Python 3.12 warns of fork() beside threads; that is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def bind(
    rank: int,
    size: int,
    *,
    group: dist.ProcessGroup | None = None,
    alone: bool = False,
    device: str = "cpu",
) -> Context:
    return runtime.bind(
        rank=rank,
        size=size,
        local_rank=rank,
        node_rank=0,
        device=torch.device(device),
        source="Trainer",
        hint=HINT,
        group=group,
        alone=alone,
    )


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_without_a_group_is_alone() -> None:
    context = bind(0, 1)
    assert (context.rank, context.size, context.group) == (0, 1, None)
    assert not context.alone


def test_several_processes_without_a_group_are_told_when_to_ask() -> None:
    with pytest.raises(ContextError, match=r"no process group.*\(rank 1 of 2\).*call launch"):
        bind(1, 2)


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_processes_that_a_launcher_started_do_not_run_alone_in_silence(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ContextError, match=r"started 2 processes.*\(rank 1 of 2\).*alone=True"):
        bind(0, 1)
    assert bind(0, 1, alone=True).alone


def test_what_lightnings_own_launcher_leaves_behind_is_no_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert bind(0, 1).size == 1


def test_runtime_and_group_that_agree_are_bound_to_the_default_group() -> None:
    with fake_world(3, 8) as world:
        context = bind(3, 8)
        assert (context.rank, context.size, context.group) == (3, 8, world)


def test_runtime_and_group_that_disagree_are_both_named() -> None:
    with fake_world(1, 2), pytest.raises(ContextError) as caught:
        bind(0, 1)
    text = str(caught.value)
    assert "the Trainer says rank 0 of 1" in text
    assert "torch.distributed says rank 1 of 2" in text
    assert "group=torch.distributed.group.WORLD" in text


def test_a_given_group_is_the_way_out_of_a_disagreement() -> None:
    with fake_world(1, 2) as world:
        context = bind(0, 1, group=world)
        assert (context.rank, context.size) == (1, 2)


def test_rank_and_size_are_those_of_the_given_subgroup() -> None:
    with fake_world(5, 8):
        group = dist.new_group([1, 5, 7])
        context = bind(5, 8, group=group)
        assert (context.rank, context.size, context.group) == (1, 3, group)


@pytest.mark.parametrize("member", [0, 1])
def test_a_process_that_is_not_in_the_group_is_told_so(member: int) -> None:
    with fake_world(2, 3):
        group = dist.new_group([member])  # torch gives a number in place of a group
        with pytest.raises(ContextError, match=r"not a member.*\(rank 2 of 3\)"):
            bind(2, 3, group=group)


def test_a_group_that_was_destroyed_is_refused() -> None:
    with fake_world(0, 2):
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(ContextError, match="does not exist any more"):
            bind(0, 2, group=group)


def test_alone_wins_over_an_existing_group() -> None:
    with fake_world(1, 2):
        context = bind(0, 1, alone=True)
        assert (context.rank, context.size, context.group) == (0, 1, None)


def test_alone_does_not_cut_a_runtime_of_several_processes_into_pieces() -> None:
    with fake_world(1, 2), pytest.raises(ContextError, match="drop alone=True"):
        bind(1, 2, alone=True)


def test_the_device_is_the_one_that_tensors_report() -> None:
    assert bind(0, 1, device="cpu:0").device == torch.zeros(1).device


def test_a_group_lives_until_it_is_destroyed() -> None:
    assert runtime.default_group() is None
    assert not runtime.is_initialized()
    with fake_world(0, 2) as world:
        assert runtime.default_group() is world
        assert runtime.group_alive(world)
        sub = dist.new_group([0])
        assert runtime.group_alive(sub)
        dist.destroy_process_group(sub)
        assert not runtime.group_alive(sub)
    assert not runtime.group_alive(world)
    assert runtime.default_group() is None


def test_a_forked_child_does_not_use_its_parents_group() -> None:
    with fake_world(0, 2) as world:
        assert in_forked_child(lambda: refusal(lambda: bind(0, 2))) == "forked process"
        given = in_forked_child(lambda: refusal(lambda: bind(0, 2, group=world)))
        assert given == "forked process"
        assert in_forked_child(lambda: str(runtime.group_alive(world))) == "False"
        assert bind(0, 2).group is world


def test_a_forked_child_may_join_a_group_of_its_own() -> None:
    def child() -> str:
        dist.destroy_process_group()
        with fake_world(1, 3):
            return str(bind(1, 3).size)

    with fake_world(0, 2):
        assert in_forked_child(child) == "3"


class Asks(Dataset[str]):
    """Binds where its items are made."""

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return refusal(lambda: bind(0, 1, alone=self.alone))


@pytest.mark.parametrize("alone", [False, True])
def test_a_forked_dataloader_worker_is_refused(*, alone: bool) -> None:
    assert workers_answer(Asks(alone=alone), "fork") == "worker 0 of 1"


def test_a_spawned_dataloader_worker_is_refused() -> None:
    assert workers_answer(Asks(), "spawn") == "worker 0 of 1"


def workers_answer(dataset: Dataset[str], method: str) -> str:
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
    (answer,) = loader
    return str(answer)


def refusal(action: Callable[[], object]) -> str:
    """Return which refusal of this file the action meets."""
    try:
        action()
    except ContextError as error:
        known = ("forked process", "worker 0 of 1")
        return next((text for text in known if text in str(error)), str(error))
    return "no refusal"


def in_forked_child(function: Callable[[], str]) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, function().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return answer
