"""What two ranks of one host send each other: sizes, order, room, and ends; in one process."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from collectives.transport.group import failure_kind
from collectives.transport.same_host import Door, SameHost
from collectives.transport.same_host.arena import SLOT, SLOTS
from collectives.transport.same_host.frame import SHORT
from tests.support.ranks import linux

pytestmark = linux

SOON, LONG = timedelta(seconds=0.2), timedelta(seconds=20)
RUN = "0123456789abcdef"
ROOM = SLOT * SLOTS
Pair = tuple[SameHost, SameHost]


def hosts(size: int) -> list[SameHost]:
    doors = [Door() for _ in range(size)]
    addresses = [door.address for door in doors]
    return [SameHost(door, rank, addresses, RUN) for rank, door in enumerate(doors)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = hosts(2)
    yield one, other
    one.break_off()
    other.break_off()


def numbers(nbytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    "nbytes",
    [0, 1, 4095, 4096, 4097, SHORT - 1, SHORT, SHORT + 1, SLOT, SLOT + 1, 3 * SLOT, 5 * SLOT + 7],
)
@pytest.mark.parametrize("first", ["send", "recv"])
def test_a_message_of_any_size_arrives_whichever_end_comes_first(
    nbytes: int, first: str, pair: Pair
) -> None:
    one, other = pair
    for seed in range(3):
        sent, got = numbers(nbytes, seed), torch.zeros(nbytes, dtype=torch.uint8)
        if first == "send":
            sending = one.send([sent], 1, 5)
            receiving = other.recv([got], 0, 5)
        else:
            receiving = other.recv([got], 0, 5)
            sending = one.send([sent], 1, 5)
        receiving.wait(LONG)
        sending.wait(LONG)
        assert torch.equal(got, sent)


@pytest.mark.parametrize("nbytes", [0, 4, SLOT + 1])
def test_a_send_is_over_when_the_receiver_has_asked_for_it_and_not_before(
    nbytes: int, pair: Pair
) -> None:
    """Or a rank whose message nobody wants would learn of it one exchange later, or never."""
    one, other = pair
    sent = numbers(nbytes)
    expected, got = sent.clone(), torch.empty_like(sent)
    sending = one.send([sent], 1, 5)
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 1"):
        sending.wait(SOON)
    other.recv([torch.empty_like(sent)], 0, 6)  # another one
    other.flush()
    with pytest.raises(TimeoutError):
        sending.wait(SOON)
    receiving = other.recv([got], 0, 5)
    other.flush()
    sending.wait(LONG)  # though the receiver has not read it
    sent.zero_()
    receiving.wait(LONG)
    assert torch.equal(got, expected)


def test_messages_match_by_tag_and_within_a_tag_by_order(pair: Pair) -> None:
    one, other = pair
    works, sizes = [], [8, SHORT + 8, 0, 2 * SLOT]
    sent = {
        (tag, size): [numbers(size, 100 * tag + k) for k in range(3)]
        for tag in (1, 2, 3)
        for size in sizes
    }
    for (tag, size), tensors in sent.items():
        number = 10 * tag + sizes.index(size)
        works += [one.send([tensor], 1, number) for tensor in tensors]
    for (tag, size), tensors in reversed(sent.items()):
        for tensor in tensors:
            got = torch.empty_like(tensor)
            other.recv([got], 0, 10 * tag + sizes.index(size)).wait(LONG)
            assert torch.equal(got, tensor)
    for work in works:
        work.wait(LONG)


def test_what_comes_is_taken_in_while_a_long_message_leaves(pair: Pair) -> None:
    one, other = pair
    works = [other.send([numbers(1)], 0, 1), one.recv([numbers(1)], 1, 1)]
    for work in reversed(works):  # now the way from the other one is open
        work.wait(LONG)
    sent = numbers(9 * SLOT + 1)
    got, back = torch.zeros_like(sent), torch.zeros_like(sent)
    one.recv([got], 1, 2)
    works = [other.send([sent], 0, 2), one.send([sent.flip(0)], 1, 3)]
    assert torch.equal(got, sent)
    works.append(other.recv([back], 0, 3))
    for work in reversed(works):
        work.wait(LONG)
    assert torch.equal(back, sent.flip(0))


def test_a_receive_that_is_posted_in_the_middle_of_a_message_gets_all_of_it(pair: Pair) -> None:
    one, other = pair
    long, small = numbers(ROOM + 3 * SLOT), numbers(4)
    other.recv([torch.empty(4, dtype=torch.uint8)], 0, 2)
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 0"):
        other.recv([torch.empty(4, dtype=torch.uint8)], 0, 3).wait(SOON)
    sending = one.send([long], 1, 1)
    late = one.send([small], 1, 2)
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 1"):
        sending.wait(SOON)  # there is room for a part of it
    got = torch.empty_like(long)
    receiving = other.recv([got], 0, 1)
    together(lambda: sending.wait(LONG), lambda: late.wait(LONG), on=lambda: receiving.wait(LONG))
    assert torch.equal(got, long)


def together(*calls: object, on: object) -> None:
    """Call some in a thread, one after the other, and one meanwhile in this one."""

    def run() -> None:
        for call in calls:
            assert callable(call)
            call()

    thread = threading.Thread(target=run)
    thread.start()
    assert callable(on)
    on()
    thread.join(20)
    assert not thread.is_alive()


def test_two_ranks_that_send_more_than_there_is_room_for_do_not_wait_for_each_other(
    pair: Pair,
) -> None:
    nbytes = 2 * ROOM + 12_345
    sent = [numbers(nbytes, rank) for rank in range(2)]
    got = [torch.empty(nbytes, dtype=torch.uint8) for _ in range(2)]
    works = [
        (host.recv([got[rank]], 1 - rank, 1), host.send([sent[rank]], 1 - rank, 1))
        for rank, host in enumerate(pair)
    ]
    together(
        *(lambda w=w: w.wait(LONG) for w in works[0]),
        on=lambda: [w.wait(LONG) for w in works[1]],  # only waits move the rest of what was sent
    )
    assert torch.equal(got[0], sent[1])
    assert torch.equal(got[1], sent[0])


def test_more_messages_than_the_socket_holds_arrive_in_order(pair: Pair) -> None:
    one, other = pair
    sent = [numbers(seed % 5 * 1000, seed) for seed in range(3_000)]
    works = [one.send([tensor], 1, 3) for tensor in sent]
    with pytest.raises(TimeoutError, match="Timed out waiting for rank 1"):
        works[-1].wait(SOON)
    got = [torch.empty_like(tensor) for tensor in sent]
    receiving = [other.recv([tensor], 0, 3) for tensor in got]
    together(
        *(lambda w=w: w.wait(LONG) for w in works),
        on=lambda: [work.wait(LONG) for work in receiving],
    )
    assert all(map(torch.equal, sent, got))


def test_a_message_of_another_size_than_expected_is_refused(pair: Pair) -> None:
    one, other = pair
    one.send([numbers(8)], 1, 1)
    with pytest.raises(RuntimeError, match="expected 4 bytes from rank 0, got 8"):
        other.recv([numbers(4)], 0, 1).wait(SOON)


def test_nothing_comes_in_time(pair: Pair) -> None:
    receiving = pair[1].recv([numbers(4)], 0, 1)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        receiving.wait(SOON)
    assert failure_kind(caught.value) == "timeout"
    assert 0.15 < time.monotonic() - began < 5


def test_a_rank_that_waits_does_not_turn_round_for_another_that_has_ended() -> None:
    one, two, three = hosts(3)
    got = numbers(4)
    one.recv([torch.empty_like(got)], 2, 1)
    three.break_off()
    receiving = one.recv([got], 1, 1)
    began, used = time.monotonic(), time.thread_time()
    with pytest.raises(TimeoutError):
        receiving.wait(SOON)
    assert time.thread_time() - used < (time.monotonic() - began) / 2
    two.send([got], 0, 1)
    receiving.wait(timedelta(days=400))
    two.break_off()


@pytest.mark.parametrize("before", [0, 1])
def test_the_end_of_a_rank_is_noticed_after_what_it_sent_was_read(before: int) -> None:
    one, other = hosts(2)
    sent = numbers(SLOT + 5)
    for _ in range(before):
        one.send([sent], 1, 1)
    got = torch.empty_like(sent)
    receiving = other.recv([got], 0, 1)
    assert not other.lost(0)
    one.break_off()
    del one
    gc.collect()
    if before:
        receiving.wait(LONG)
        assert torch.equal(got, sent)
        receiving = other.recv([got], 0, 1)
    with pytest.raises(ConnectionError, match=r"Connection closed by peer \(rank 0\)") as caught:
        receiving.wait(LONG)
    assert failure_kind(caught.value) == "lost"
    assert other.lost(0)
    with pytest.raises(ConnectionError) as sending:
        other.send([sent], 0, 1).wait(LONG)
    assert failure_kind(sending.value) == "lost"


@pytest.mark.parametrize("connected", [False, True])
def test_a_wait_ends_when_it_is_broken_off_from_another_thread(connected: bool, pair: Pair) -> None:
    one, other = pair
    if connected:
        got = numbers(4)
        one.send([got], 1, 1)
        other.recv([got], 0, 1).wait(LONG)
    receiving = other.recv([numbers(4)], 0, 2)
    timer = threading.Timer(0.1, other.break_off)
    timer.start()
    with pytest.raises(ConnectionError, match="Connection closed by peer"):
        receiving.wait(LONG)
    timer.join()
    with pytest.raises(ConnectionError):
        one.send([numbers(ROOM + 1)], 1, 3).wait(LONG)


def test_what_goes_to_a_third_rank_moves_on_while_two_wait_for_each_other() -> None:
    one, two, three = hosts(3)
    long = numbers(ROOM + 5 * SLOT)
    sending = one.send([long], 2, 1)
    got, small = torch.empty_like(long), numbers(4)
    receiving, waiting = three.recv([got], 0, 1), one.recv([small], 1, 2)

    def answer() -> None:
        receiving.wait(LONG)
        two.send([numbers(4)], 0, 2).wait(LONG)

    together(answer, on=lambda: waiting.wait(LONG))
    sending.wait(LONG)
    assert torch.equal(got, long)


def test_nothing_is_left_open() -> None:
    files = Path("/proc/self/fd")
    gc.collect()
    before = len(list(files.iterdir()))
    one, other = hosts(2)
    got = numbers(4)
    sending = one.send([got], 1, 1)
    other.recv([got], 0, 1).wait(LONG)
    sending.wait(LONG)
    assert len(list(files.iterdir())) > before
    del sending
    del one, other
    assert len(list(files.iterdir())) == before  # by reference counts alone
