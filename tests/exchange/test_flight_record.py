"""From an exchange that fails to the sentences that say who was where."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from adapters.raw_ddp import RawDDPAdapter
from collectives import Adapter, Exchange, Ring
from collectives.cli import main
from collectives.errors import ContextError, ExchangeClosed, ExchangeError
from collectives.record import load, verdict
from collectives.testing import simulate
from collectives.testing.pool import RankPool
from tests.support.modules import Holder
from tests.support.worlds import World

ROOT = Path(__file__).parents[2]
X = torch.ones(4)


def other_name(adapter: Adapter, folder: Path) -> None:
    """Rank 2 exchanges 'v' where the others exchange 'kv'."""
    kv, v = (Exchange(Ring, adapter, name=name, timeout=1.0) for name in ("kv", "v"))
    with torch.no_grad(), saved(kv, folder):
        for _ in range(4):
            kv.shift(X)
        (v if kv.rank == 2 else kv).shift(X)


def one_less(adapter: Adapter, folder: Path) -> None:
    """Rank 1 makes one exchange less than the others."""
    exchange = Exchange(Ring, adapter, name="kv", timeout=1.0)
    with saved(exchange, folder):
        for _ in range(4 if exchange.rank == 1 else 5):
            exchange.exchange(to_left=X, to_right=X)


def other_phase(adapter: Adapter, folder: Path) -> None:
    """Rank 0 runs a backward where the others go on forward."""
    exchange = Exchange(Ring, adapter, name="kv", timeout=1.0)
    with saved(exchange, folder):
        result = exchange.shift(X.clone().requires_grad_())
        if exchange.rank == 0:
            exchange.join(result.sum()).backward()
        else:
            exchange.shift(X)


class saved:  # noqa: N801 - reads as a verb
    """Save the record when the block ends, also by the failure that it is for."""

    def __init__(self, exchange: Exchange, folder: Path) -> None:
        self.exchange, self.folder = exchange, folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        self.exchange.flight_record().save(self.folder)
        if dist.is_initialized():
            # A rank that left now would fail the others by its closed sockets, not by the deadline.
            self.wait_for_all()
        return isinstance(error, ExchangeError)

    def wait_for_all(self) -> None:
        store = dist.distributed_c10d._get_default_store()
        store.set(f"saved/{dist.get_rank()}", "")
        store.wait([f"saved/{rank}" for rank in range(dist.get_world_size())])


CASES: dict[Callable[[Adapter, Path], None], str] = {
    other_name: (
        "Rank 2 ran exchange #5 shift(offset=1, axis='ring') of 'v' where ranks 0, 1 and 3 ran #5"
        " shift(offset=1, axis='ring') of 'kv': differs in name."
    ),
    one_less: (
        "Rank 1 finished #4 and did not start #5 exchange(axis='ring') of 'kv', where others wait"
        " for it: rank 0 awaits float32[4] from rank 1 on lane 0; rank 2 awaits float32[4] from"
        " rank 1 on lane 1."
    ),
    other_phase: (
        "Rank 0 ran exchange #1 backward of shift(offset=1, axis='ring') of 'kv' where ranks 1..3"
        " ran #2 shift(offset=1, axis='ring') of 'kv': differs in sequence, phase."
    ),
}


@pytest.mark.parametrize("program", CASES)
def test_the_records_of_simulated_ranks_say_who_was_where(
    program: Callable[[Adapter, Path], None], tmp_path: Path
) -> None:
    simulate(4, program, tmp_path)
    assert verdict([load(path) for path in tmp_path.iterdir()])[0] == CASES[program]


@pytest.mark.parametrize("program", CASES)
def test_the_records_of_gloo_ranks_that_time_out_say_who_was_where(
    program: Callable[[Adapter, Path], None], rank_pool: RankPool, tmp_path: Path
) -> None:
    rank_pool.run(over_gloo, program, tmp_path, size=4, timeout=30)
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "flight-record", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    head = "group 'default': 4 ranks, Ring(4)"
    folder, _, title, _, columns, _, *lines = done.stdout.splitlines()
    assert (folder, title) == (str(tmp_path), head)
    assert columns.split("  ")[0] == "rank"
    assert [line.split()[0] for line in lines[:4]] == ["0", "1", "2", "3"]
    assert lines[5] == CASES[program]


def over_gloo(program: Callable[[Adapter, Path], None], folder: Path) -> None:
    program(RawDDPAdapter(), folder)


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(4, other_name, tmp_path)
    assert main(["flight-record", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (group,) = found["groups"]
    assert (group["group"], group["size"]) == ("simulation", 4)
    assert [one["rank"] for one in group["ranks"]] == [0, 1, 2, 3]
    assert group["verdict"][0] == CASES[other_name]


def test_the_command_names_files_that_are_no_records_and_reads_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(1, lambda adapter: Exchange(Ring, adapter).flight_record().save(tmp_path))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text("not looked at")
    assert main(["flight-record", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "group 'simulation': 1 rank, Ring(1)" in printed.out
    assert "Nothing was exchanged." in printed.out
    assert printed.err.startswith(f"flight-record: {tmp_path / 'broken.json'}: expected the JSON")
    assert "notes" not in printed.err


def test_the_command_says_what_to_give_it_where_there_is_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    assert main(["flight-record", str(tmp_path)]) == 1
    assert "it has the folders job: give one of them" in capsys.readouterr().err
    assert main(["flight-record", str(tmp_path / "none")]) == 1
    assert "is no folder" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["flight-record"]) == 1
    assert "no job of this user" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
    assert "required: command" in capsys.readouterr().err


def test_without_a_folder_the_command_reads_the_newest_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from collectives.record import dump

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("COLLECTIVES_FLIGHT_RECORD", raising=False)
    path = dump(Exchange(Ring, RawDDPAdapter(alone=True)).flight_record())
    assert path is not None
    assert main(["flight-record"]) == 0
    assert capsys.readouterr().out.startswith(str(path.parent))


def shared_record(adapter: Adapter) -> list[tuple[int, tuple[str, ...], str]]:
    one, other = Exchange(Ring, adapter, name="one"), Exchange(Ring, adapter, name="other")
    before = one.flight_record()
    assert before.entries == ()
    one.shift(X)
    pending = other.start_shift(X)
    under_way = one.flight_record()
    assert [(e.state, e.waited) for e in under_way.entries] == [
        ("done", False),
        ("under way", False),
    ]
    pending.wait()
    records = [one.flight_record(), other.flight_record()]
    assert records[0].entries[1].state == "done"
    return [(len(r.entries), r.names, r.topology) for r in records]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_exchanges_over_one_group_share_a_record(world: World, size: int) -> None:
    expected = [(2, ("one", "other"), f"Ring({size})")] * 2
    assert world(shared_record, size) == [expected] * size


@pytest.mark.ranks(4)
def test_each_group_has_a_label_of_its_own_alike_on_its_ranks(rank: int) -> None:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = Exchange(Ring, RawDDPAdapter(group=groups[rank % 2])).flight_record()
    assert (mine.rank, mine.size) == (rank // 2, 2)
    labels: list[str | None] = [None] * 4
    dist.all_gather_object(labels, mine.group)
    assert labels[0] == labels[2] != labels[1] == labels[3]
    assert Exchange(Ring, RawDDPAdapter()).flight_record().group == "default"


@pytest.mark.ranks(2)
def test_the_record_outlives_the_group(rank: int) -> None:
    exchange = Exchange(Ring, RawDDPAdapter(), name="kv")
    exchange.shift(X)
    dist.destroy_process_group()
    assert [entry.name for entry in exchange.flight_record().entries] == ["kv"]
    with pytest.raises(ContextError, match="2 ranks"):
        copy.deepcopy(exchange).flight_record()
    exchange.close()
    with pytest.raises(ExchangeClosed, match=r"before close\(\)"):
        exchange.flight_record()
    assert rank in (0, 1)


def test_to_take_a_record_is_no_first_use() -> None:
    exchange = Holder().exchange
    assert exchange.flight_record().group == "alone"
    assert exchange._binding is None
