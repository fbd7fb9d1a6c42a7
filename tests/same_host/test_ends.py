"""Sends to a rank that ends, or that are broken off, while they have not fully left."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from collectives.transport import Work
from collectives.transport.same_host import SameHost
from collectives.transport.same_host.arena import SLOT, SLOTS
from collectives.transport.same_host.frame import SHORT
from tests.support.ranks import linux

from .test_lines import LONG, hosts

pytestmark = linux

ROOM = SLOT * SLOTS
ENDS: dict[str, Callable[[SameHost, SameHost], None]] = {
    "the receiver ends": lambda _, other: other.close(),
    "the receiver breaks off": lambda _, other: other.break_off(),
    "the sender breaks off": lambda one, _: one.break_off(),
}


def wait_for_all(works: list[Work]) -> None:
    for work in works:
        work.wait(LONG)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "sizes",
    [(SHORT + 1,) * (SLOTS + 2), (ROOM, SHORT + 1), (ROOM, ROOM), (ROOM + SLOT,), (SHORT,) * 3000],
    ids=["many leaves", "one more", "two long", "one long", "short ones"],
)
def test_a_send_that_was_asked_for_and_has_not_left_ends_with_its_receiver(
    sizes: tuple[int, ...], end: str
) -> None:
    """Nothing is awaited from the receiver any more; its end must be noticed all the same."""
    one, other = hosts(2)
    sent = torch.zeros(max(sizes), dtype=torch.uint8)
    asked = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    for work in [other.send([sent[:1]], 0, 1), one.recv([torch.empty_like(sent[:1])], 1, 1)][::-1]:
        work.wait(LONG)  # both ways are open
    for tag, tensor in enumerate(asked, 2):
        other.recv([tensor], 0, tag)
    other.flush()
    one.take_in()  # it knows that all of it is wanted
    sends = [one.send([sent[:size]], 1, tag) for tag, size in enumerate(sizes, 2)]
    ENDS[end](one, other)
    begun, spent = time.monotonic(), time.process_time()
    with pytest.raises(ConnectionError, match=r"Connection closed by peer \(rank 1\)"):
        wait_for_all(sends)
    assert time.monotonic() - begun < 2
    assert time.process_time() - spent < 1
    one.break_off()
    other.break_off()
