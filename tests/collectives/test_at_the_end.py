"""The end of a process: ranks meet, and helper threads are waited for, but not for long."""

from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from collectives.transport.control import meet_at_end
from collectives.transport.stopwatch import _join_helpers, start_helper


@pytest.mark.ranks(1, 2, 3, 5)
def test_no_rank_goes_on_before_the_last_has_come(rank: int, world_size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    store = dist.distributed_c10d._get_default_store()
    if rank == world_size - 1:
        time.sleep(0.3)
        store.set("the last has come", "")
    meet_at_end(group, 20.0)
    assert store.check(["the last has come"])


def test_a_helper_that_is_about_to_end_is_waited_for_and_another_one_is_not() -> None:
    over = threading.Event()
    start_helper(lambda: time.sleep(0.2), "short-helper")

    def wait() -> None:
        over.wait(20.0)

    start_helper(wait, "long-helper")
    _join_helpers()
    names = {thread.name for thread in threading.enumerate()}
    over.set()
    assert "short-helper" not in names
    assert "long-helper" in names
