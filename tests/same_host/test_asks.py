"""What a receiver has asked for reaches the sender, even where the way to it is full."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from collectives.transport.same_host import Door, SameHost
from collectives.transport.same_host.arena import SLOT, SLOTS
from tests.support.ranks import linux

pytestmark = linux

ROOM = SLOT * SLOTS
RUN = "0123456789abcdef"
SOON, LONG = timedelta(seconds=0.2), timedelta(seconds=20)


class Full:
    """A socket that takes nothing until it is told to."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.full = line, True

    def send(self, *message: object) -> int:
        if self.full:
            raise BlockingIOError
        return self.line.send(*message)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.line, name)


@pytest.fixture
def pair() -> Iterator[tuple[SameHost, SameHost]]:
    """Return two ranks in one process, with ways to each other."""
    one, other = connected()
    yield one, other
    one.break_off()
    other.break_off()


def connected() -> tuple[SameHost, SameHost]:
    doors = [Door(), Door()]
    one, other = (SameHost(d, n, [d.address for d in doors], RUN) for n, d in enumerate(doors))
    nothing = torch.zeros(0)
    sending, receiving = one.send([nothing], 1, 1), other.recv([nothing], 0, 1)
    receiving.wait(LONG)
    sending.wait(LONG)
    return one, other


def fill(host: SameHost, peer: int) -> Full:
    outbox = host._inboxes[peer].outbox
    line = Full(outbox.line)
    outbox.line = line  # type: ignore[assignment]
    return line


@pytest.mark.parametrize("nbytes", [0, 4, SLOT + 1])
def test_a_receive_is_not_over_before_the_sender_knows_that_it_was_asked_for(
    nbytes: int, pair: tuple[SameHost, SameHost]
) -> None:
    """Or a rank that goes on to a barrier would leave the other one waiting for it there."""
    one, other = pair
    line = fill(one, 1)
    sent, got = torch.arange(nbytes).to(torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)
    receiving = one.recv([got], 1, 2)
    one.flush()
    sending = other.send([sent], 0, 2)
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 1"):
        receiving.wait(SOON)
    assert torch.equal(got, sent)
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 0"):
        sending.wait(SOON)
    line.full = False
    receiving.wait(LONG)
    sending.wait(LONG)


def test_what_has_not_left_is_what_was_sent_whatever_becomes_of_the_tensor(
    pair: tuple[SameHost, SameHost],
) -> None:
    one, other = pair
    sent = torch.full((ROOM + 3 * SLOT,), 7, dtype=torch.uint8)
    sending = one.send([sent], 1, 2)
    sent.data = torch.ones(4, dtype=torch.uint8)
    got = torch.zeros(ROOM + 3 * SLOT, dtype=torch.uint8)
    receiving = other.recv([got], 0, 2)
    thread = threading.Thread(target=sending.wait, args=(LONG,))
    thread.start()
    receiving.wait(LONG)
    thread.join(20)
    assert (got == 7).all()


def test_a_storage_that_was_given_up_before_all_has_left_is_an_error(
    pair: tuple[SameHost, SameHost],
) -> None:
    one, other = pair
    sent = torch.full((ROOM + 3 * SLOT,), 7, dtype=torch.uint8)
    sending = one.send([sent], 1, 2)
    sent.untyped_storage().resize_(0)  # as sharded data parallel does
    receiving = other.recv([torch.zeros(ROOM + 3 * SLOT, dtype=torch.uint8)], 0, 2)
    with pytest.raises(TimeoutError):
        receiving.wait(SOON)  # now there is room for more
    with pytest.raises(RuntimeError, match="to rank 1 has lost its storage"):
        sending.wait(LONG)


def test_a_group_that_was_broken_keeps_no_wait_of_another_awake(
    pair: tuple[SameHost, SameHost],
) -> None:
    broken = connected()
    for host in (*pair, *broken):
        host.flush()  # all in this thread
    receiving = pair[0].recv([torch.zeros(4)], 1, 2)
    timers = [threading.Timer(0.1, host.break_off) for host in broken]
    for timer in timers:
        timer.start()
    spent = time.process_time()
    with pytest.raises(TimeoutError):
        receiving.wait(timedelta(seconds=1))
    assert time.process_time() - spent < 0.5
    for timer in timers:
        timer.join()


def test_a_receive_is_over_where_the_sender_has_ended(pair: tuple[SameHost, SameHost]) -> None:
    one, other = pair
    fill(one, 1)
    got = torch.zeros(4)
    receiving = one.recv([got], 1, 2)
    other.send([torch.ones(4)], 0, 2)
    other.break_off()
    receiving.wait(LONG)
    assert torch.equal(got, torch.ones(4))
