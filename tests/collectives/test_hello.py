"""Ranks that greet each other: threads of this process over one store, each with an identity."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore

from collectives.errors import CollectivesError, ContextError, ExchangeTimeout
from collectives.facts import PROTOCOL, Entry, Facts, Process, this_process
from collectives.hello import StoreLike, greet

RING = "Ring(3)"


@pytest.fixture(params=["hash", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "hash":
        return HashStore()
    return FileStore(str(tmp_path / "store"), -1)


def everybody(size: int, topology: str = "", job: str = "", torch: str = "") -> list[Facts]:
    return [Facts(rank, size, topology, job, torch) for rank in range(size)]


def process(name: str) -> Process:
    return Process(f"host-{name}", 100 + ord(name), f"token-{name}")


def meet(
    store: StoreLike,
    ranks: Sequence[Facts],
    processes: Sequence[Process] | None = None,
    timeout: float = 5.0,
) -> list[int | CollectivesError]:
    """Let all greet at once; give the generation of each, or its error."""
    who = processes or [process(chr(97 + number)) for number in range(len(ranks))]

    def one(facts: Facts, me: Process) -> int | CollectivesError:
        try:
            return greet(store, facts, timeout=timeout, label="group", process=me).generation
        except CollectivesError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(one, ranks, who))


def texts(outcomes: Sequence[int | CollectivesError], kind: type[CollectivesError]) -> list[str]:
    assert all(isinstance(outcome, kind) for outcome in outcomes), outcomes
    return [str(outcome) for outcome in outcomes]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_that_agree_pass(store: Store, size: int) -> None:
    assert meet(store, everybody(size, topology=RING, job="J", torch="2.5")) == [1] * size


def test_a_group_greets_again_and_again_over_the_same_store(store: Store) -> None:
    for generation in range(1, 6):
        assert meet(store, everybody(3)) == [generation] * 3


def test_what_a_rank_does_not_know_is_not_compared() -> None:
    ranks = [Facts(0, 2, topology=RING, job="J", torch="2.5"), Facts(1, 2)]
    assert meet(HashStore(), ranks) == [1, 1]


def test_builds_of_one_version_of_torch_may_differ() -> None:
    ranks = [Facts(0, 2, torch="2.13.0+cpu"), Facts(1, 2, torch="2.13.0+cu126")]
    assert meet(HashStore(), ranks) == [1, 1]


@pytest.mark.parametrize(
    ("odd", "what", "remedy"),
    [
        (Facts(2, 3, topology="Ring(3, periodic=False)"), "topology", "the same topology"),
        (Facts(2, 3, job="B"), "job", "two jobs meet at one address"),
        (Facts(2, 3, torch="2.4.0"), "torch", "one version of torch on"),
        (Facts(2, 3, protocol=PROTOCOL + 1), "protocol", "one version of torch-collectives"),
    ],
)
def test_what_differs_is_named_with_both_values_on_every_rank(
    odd: Facts, what: str, remedy: str
) -> None:
    usual = [Facts(rank, 3, topology=RING, job="A", torch="2.5.1") for rank in range(2)]
    here, there = getattr(usual[0], what), getattr(odd, what)
    begun = time.monotonic()
    first, second, third = texts(meet(HashStore(), [*usual, odd]), ContextError)
    assert time.monotonic() - begun < 2.5  # nobody waits for the timeout
    assert all(remedy in text for text in (first, second, third))
    for rank, text in enumerate((first, second)):
        assert f"rank 2 and rank {rank} disagree: {what} {there!r} there, {here!r} here" in text
        assert f"(rank {rank} of 3, process" in text
    assert f"and rank 2 disagree: {what} {here!r} there, {there!r} here" in third


def test_a_long_topology_is_compared_whole_and_shown_in_part() -> None:
    edges = ", ".join(f"({n}, {n + 1})" for n in range(10_000))
    ranks = [
        Facts(0, 2, topology=f"Graph([{edges}, 1])"),
        Facts(1, 2, topology=f"Graph([{edges}])"),
    ]
    for text in texts(meet(HashStore(), ranks), ContextError):
        assert "Graph([(0, 1), (1, 2)" in text
        assert "sha256" in text
        assert len(text) < 5_000


@pytest.mark.parametrize("other", [2, 4])
def test_another_size_is_found_whichever_rank_waits_for_fewer(store: Store, other: int) -> None:
    ranks = [Facts(0, 3), Facts(1, other), Facts(2, 3)]
    for rank, text in enumerate(texts(meet(store, ranks), ContextError)):
        assert f"size {other} there, 3 here" in text or f"size 3 there, {other} here" in text
        assert "WORLD_SIZE" in text
        assert f"(rank {rank} of " in text


def test_another_size_is_found_though_ranks_are_missing() -> None:
    """The ranks that this one waits for would never come: it does not wait for them."""
    begun = time.monotonic()
    for text in texts(meet(HashStore(), [Facts(0, 8), Facts(5, 7)], timeout=20), ContextError):
        assert "disagree: size" in text
    assert time.monotonic() - begun < 2.5


def test_a_rank_beyond_the_size_of_the_others_is_told_even_if_they_are_content() -> None:
    store = HashStore()
    assert meet(store, everybody(2)) == [1, 1]
    (text,) = texts(meet(store, [Facts(2, 3)], [process("c")]), ContextError)
    assert "ranks 0, 1 and rank 2 disagree: size 2 there, 3 here" in text


def test_two_processes_with_one_rank_are_both_named_to_all() -> None:
    ranks = [Facts(0, 3), Facts(1, 3), Facts(1, 3)]
    for text in texts(meet(HashStore(), ranks, timeout=20), ContextError):
        assert "two processes claim rank 1" in text
        assert "process 198 on host-b" in text
        assert "process 199 on host-c" in text


def test_a_process_that_claims_a_rank_of_a_running_group_is_refused() -> None:
    store = HashStore()
    for _ in range(3):
        meet(store, everybody(2))
    (text,) = texts(meet(store, [Facts(0, 2)], [process("x")]), ContextError)
    assert "two processes claim rank 0: process 197 on host-a and process 220 on host-x" in text
    assert meet(store, everybody(2)) == [4, 4]  # the group itself is none the worse


def test_two_jobs_at_one_address_are_named_before_their_ranks_are_compared() -> None:
    ranks = [Facts(0, 2, job="A"), Facts(1, 2, job="B")]
    first, second = texts(meet(HashStore(), ranks), ContextError)
    assert "job 'B' there, 'A' here" in first
    assert "job 'A' there, 'B' here" in second


def test_ranks_that_do_not_come_are_named_on_those_that_came() -> None:
    ranks = [Facts(0, 5), Facts(3, 5)]
    for text in texts(meet(HashStore(), ranks, timeout=0.2), ExchangeTimeout):
        assert "ranks 1, 2, 4 did not come within 0.2 s: 2 of 5 came" in text


def test_of_many_missing_ranks_the_first_are_named() -> None:
    (text,) = texts(meet(HashStore(), [Facts(1, 100)], timeout=0.05), ExchangeTimeout)
    assert "ranks 0, 2, 3, 4, 5, 6, 7, 8 and 91 more did not come" in text


def test_a_rank_that_comes_after_another_gave_up_is_told_why_at_once() -> None:
    store = HashStore()
    meet(store, [Facts(1, 2)], [process("b")], timeout=0.05)
    begun = time.monotonic()
    (text,) = texts(meet(store, [Facts(0, 2)], [process("a")], timeout=20), ExchangeTimeout)
    assert time.monotonic() - begun < 2.5
    assert "rank 1 (process 198 on host-b) gave up: hello: rank 0 did not come" in text
    assert meet(store, everybody(2)) == [2, 2]  # and both may try again


def test_an_attempt_that_failed_for_one_reason_is_not_held_against_the_next() -> None:
    store = HashStore()
    texts(meet(store, [Facts(0, 2, topology="Ring(2)"), Facts(1, 2, topology=RING)]), ContextError)
    assert meet(store, everybody(2, topology="Ring(2)")) == [2, 2]


def test_two_groups_in_one_store_do_not_see_each_other() -> None:
    store = HashStore()
    greet(store, Facts(0, 1, topology="Ring(1)"), timeout=1, label="one")
    greeting = greet(store, Facts(0, 1, topology="Mesh((1,))"), timeout=1, label="other")
    assert greeting.generation == 1


@pytest.mark.parametrize(
    "written",
    [
        "\x80\x04",
        "[" * 100_000,
        "null",
        "7",
        json.dumps({"rank": 1}),
        Entry(Facts(0, 1), process("b")).dump().replace('"rank": 0', '"rank": true'),
        Entry(Facts(0, 1), process("b")).dump().replace('"job": ""', '"job": 3'),
        json.dumps(
            {"padding": "x" * 70_000, **json.loads(Entry(Facts(0, 1), process("b")).dump())}
        ),
    ],
)
def test_what_no_rank_wrote_is_refused_with_its_beginning(written: str) -> None:
    store = HashStore()
    store.add("group/1/entries", 1)
    store.set("group/1/1", written)
    (text,) = texts(meet(store, [Facts(0, 1)]), ContextError)
    assert "expected entries of ranks in the store, got b" in text
    assert len(text) < 500


def test_keys_of_a_later_version_are_left_aside() -> None:
    store = HashStore()
    entry = {**json.loads(Entry(Facts(0, 2), process("a")).dump()), "colour": [1, 2]}
    store.add("group/1/entries", 1)
    store.set("group/1/1", json.dumps(entry))
    assert meet(store, [Facts(1, 2)]) == [1]


def test_an_entry_whose_writer_was_killed_in_between_holds_nobody_up() -> None:
    store = HashStore()
    store.add("group/1/entries", 1)  # its value never comes
    assert meet(store, everybody(3)) == [1, 1, 1]


def test_a_caller_in_another_thread_can_give_up() -> None:
    store, stop = HashStore(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(greet, store, Facts(1, 2), timeout=60, label="group", stop=stop)
        stop.set()
        with pytest.raises(ContextError, match=r"this rank was stopped \(rank 1 of 2"):
            waiting.result(timeout=2.5)


def test_a_forked_process_is_another_process() -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        child = pool.apply(this_process)
    assert this_process() is this_process()
    assert child.token != this_process().token
    assert child.pid != this_process().pid


class Slow:
    """A store whose every answer takes a while."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., object]:
        time.sleep(0.02)
        method: Callable[..., object] = getattr(self._store, name)
        return method


def test_a_slow_store_is_no_error() -> None:
    assert meet(Slow(HashStore()), everybody(3)) == [1, 1, 1]  # type: ignore[arg-type]


@pytest.mark.ranks(3, backend=None)
def test_real_processes_agree_over_a_tcp_store_and_name_the_odd_one(
    rank: int, tmp_path: Path
) -> None:
    store = connect(rank, tmp_path / "port")
    for generation in (1, 2, 3):
        greeting = greet(store, Facts(rank, 3, topology=RING), timeout=20, label="group")
        assert greeting.generation == generation
    odd = Facts(rank, 3, topology=RING if rank else "Ring(4)")
    with pytest.raises(ContextError, match=r"disagree: topology 'Ring\(\d\)' there"):
        greet(store, odd, timeout=20, label="group")
    with pytest.raises(ContextError, match="two processes claim rank 1: process"):
        greet(store, Facts(max(rank, 1), 4), timeout=20, label="another group")


def connect(rank: int, file: Path) -> TCPStore:
    """Open a store in rank 0, and tell the others the port."""
    limit = timedelta(seconds=20)
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False)
        draft = file.with_suffix(".new")
        draft.write_text(str(store.port))
        draft.replace(file)
        return store
    while not file.exists():
        time.sleep(0.01)
    return TCPStore("127.0.0.1", int(file.read_text()), is_master=False, timeout=limit)
