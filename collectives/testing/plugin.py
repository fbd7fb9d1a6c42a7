"""Pytest plugin: ``@pytest.mark.ranks(n)`` makes the body of a test the program of n ranks.

Load it by ``pytest_plugins = ["collectives.testing.plugin"]`` in the top-level conftest.py. ::

    @pytest.mark.ranks(1, 2, 3)
    def test_every_rank_gets_the_sum(rank, world_size):
        total = torch.tensor(rank)
        dist.all_reduce(total)
        assert total == world_size * (world_size - 1) // 2

Values of parameters and fixtures are made once, in pytest's process, and sent to every rank;
``rank`` and ``monkeypatch`` are each rank's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from . import wire
from .pool import PRELOAD, RANK, RankPool, RanksFailedError, RanksSkippedError
from .rank_process import start_fork_server

__all__ = ["rank", "rank_pool", "world_size"]

_SIZE = "_ranks_size"

# They act on the process that they were made in, so they would act on nothing in a rank.
_BOUND_TO_PYTEST = (
    pytest.FixtureRequest,
    pytest.CaptureFixture,
    pytest.LogCaptureFixture,
    pytest.WarningsRecorder,
    RankPool,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Keywords of the marker."""

    timeout: float = 30.0
    backend: str | None = "gloo"
    fresh: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "ranks_preload",
        "modules that are imported once, before ranks are forked",
        type="linelist",
        default=list(PRELOAD),
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ranks(*sizes, timeout=30, backend='gloo', fresh=False): run the body of this test on "
        "every rank of a new process group, once for each of sizes; timeout in seconds; "
        "backend=None: no group; fresh: in processes that no other test uses.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is None:
        return
    name = metafunc.definition.nodeid
    if not marker.args or not all(isinstance(n, int) and n > 0 for n in marker.args):
        message = f"{name}: ranks() takes one or more world sizes, got {marker.args}"
        raise pytest.UsageError(message)
    try:
        _Options(**marker.kwargs)
    except TypeError as error:
        raise pytest.UsageError(f"{name}: ranks(): {error}") from None
    metafunc.fixturenames.append(_SIZE)
    metafunc.parametrize(_SIZE, marker.args, ids=[f"ranks={n}" for n in marker.args])


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or item.get_closest_marker("ranks") is None:
        return
    if "rank_pool" not in item.fixturenames:  # the list is one for all variants of a test
        item.fixturenames.insert(0, "rank_pool")


def pytest_collection_finish(session: pytest.Session) -> None:
    # Its imports take seconds: they may as well run beside the tests that come before.
    if session.config.option.collectonly:
        return
    if any("rank_pool" in getattr(item, "fixturenames", ()) for item in session.items):
        start_fork_server(session.config.getini("ranks_preload"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    module = getattr(item, "module", None)
    if not inspect.ismodule(module):
        return (yield)
    with wire.by_value(module):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        pool = getattr(item, "funcargs", {}).get("rank_pool")
        if isinstance(pool, RankPool):
            for number, text in pool.take_output().items():
                item.add_report_section("call", f"rank {number}", text)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    trouble = ""
    try:
        _run_on_ranks(pyfuncitem, _Options(**marker.kwargs))
    except RanksSkippedError as error:
        pytest.skip(str(error))
    except RanksFailedError as error:
        trouble = str(error)
    # Out here, or pytest shows the error a second time as the cause of its own.
    if trouble:
        pytest.fail(trouble, pytrace=False)
    return True


@pytest.fixture(scope="session")
def rank_pool(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[RankPool]:
    """The pool itself, for a test that compares what its ranks return."""
    folder = tmp_path_factory.mktemp("ranks", numbered=False)
    with RankPool(folder, preload=pytestconfig.getini("ranks_preload")) as pool:
        yield pool


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> object:
    """The number of the rank, for the body of a test with ``@pytest.mark.ranks`` alone."""
    _size(request.node)
    return RANK


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks that run the body of a test with ``@pytest.mark.ranks``."""
    return _size(request.node)


def _run_on_ranks(item: pytest.Function, options: _Options) -> None:
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        pytest.fail("ranks: the body of the test is async: nothing would run it", pytrace=False)
    pool = cast("RankPool", item.funcargs["rank_pool"])
    if options.fresh:
        pool.discard()
    pool.run(
        item.obj,
        size=_size(item),
        timeout=options.timeout,
        backend=options.backend,
        kwargs=_arguments(item),
    )
    if options.fresh:
        pool.discard()


def _size(item: pytest.Item) -> int:
    if item.get_closest_marker("ranks") is None:
        pytest.fail("ranks: rank and world_size exist only under @pytest.mark.ranks", pytrace=False)
    return cast("int", cast("pytest.Function", item).callspec.params[_SIZE])


def _arguments(item: pytest.Function) -> dict[str, object]:
    wanted = inspect.signature(item.obj).parameters  # those with a default are not fixtures
    arguments = {name: item.funcargs[name] for name in wanted if name in item.funcargs}
    for name, value in arguments.items():
        if isinstance(value, pytest.MonkeyPatch):
            arguments[name] = wire.OnRank.MONKEYPATCH
        elif isinstance(value, _BOUND_TO_PYTEST):
            message = f"ranks: fixture {name!r} acts on pytest's own process: expected a value "
            remedy = "that can be sent to ranks; use rank_pool.run() from a test without the marker"
            pytest.fail(message + remedy, pytrace=False)
    return arguments
