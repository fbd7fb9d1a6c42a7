"""The marker and the fixtures, each in a pytest run of its own."""

from __future__ import annotations

from textwrap import dedent

import pytest

HEADER = """
import os
import pytest
import torch.distributed as dist
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each run would import hypothesis anew: seconds.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, source: str, *options: str, **outcomes: int) -> pytest.RunResult:
    pytester.makepyfile(HEADER + dedent(source))
    # Without its five collections of all that torch has made, a run takes 0.1 s instead of 1 s.
    plugins = ("-p", "collectives.testing.plugin", "-p", "no:unraisableexception")
    result = pytester.runpytest_inprocess(*plugins, *options)
    result.assert_outcomes(**outcomes)
    return result


def test_the_body_runs_once_for_each_size_on_every_rank(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.mark.ranks(1, 2, 3)
    def test_body(rank, world_size):
        assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())

    @pytest.mark.ranks(2)
    def test_rank_is_not_zero(rank):
        assert rank == 0
    """
    result = run(pytester, source, "-v", passed=3, failed=1)
    names = [f"*::test_body?ranks={size}? PASSED*" for size in (1, 2, 3)]
    result.stdout.fnmatch_lines([*names, "*rank 1 of 2 failed first*"])


def test_parameters_and_values_of_fixtures_are_sent_along(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.fixture
    def made_by():
        return os.getpid()

    @pytest.mark.ranks(2)
    @pytest.mark.parametrize("word", ["ring", "mesh"])
    def test_body(word, made_by, tmp_path, world_size, default=7):
        assert default == 7
        assert word in ("ring", "mesh")
        assert made_by != os.getpid()
        (tmp_path / f"{word}-{dist.get_rank()}").touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == world_size
    """
    run(pytester, source, passed=2)


def test_a_failing_rank_is_shown_with_pytests_own_words_and_its_output(
    pytester: pytest.Pytester,
) -> None:
    source = """
    @pytest.mark.ranks(2)
    def test_body(rank):
        print("rank", rank, "speaks")
        dist.barrier()
        if rank == 1:
            seen = [1, 2]
            assert seen == [1, 3]
        dist.barrier()
    """
    result = run(pytester, source, failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 1 of 2 failed first, after *",
            "*test_a_failing_rank*.py*, line *, in test_body",
            "    assert seen == *1, 3*",
            "AssertionError: assert *1, 2* == *1, 3*",
            "rank 0 failed after it: RuntimeError:*",
            "*Captured rank 0 call*",
            "rank 0 speaks",
            "*Captured rank 1 call*",
            "rank 1 speaks",
        ]
    )
    result.stdout.no_fnmatch_line("*plugin.py*")


def test_options_of_the_marker_are_obeyed(pytester: pytest.Pytester) -> None:
    source = """
    import time

    @pytest.mark.ranks(2, backend=None)
    def test_without_a_group():
        assert not dist.is_initialized()

    @pytest.mark.ranks(1, timeout=1)
    def test_that_takes_long():
        time.sleep(60)

    @pytest.mark.ranks(2)
    class TestGroup:
        @pytest.mark.ranks(1)
        def test_the_closest_marker_counts(self, world_size):
            assert world_size == 1

        def test_marks_of_the_class_reach_its_methods(self, world_size):
            assert world_size == 2
    """
    result = run(pytester, source, passed=3, failed=1)
    result.stdout.fnmatch_lines(["rank 0 of 1 still ran after 1.*"])


def test_fresh_processes_are_used_by_no_other_test(pytester: pytest.Pytester) -> None:
    source = """
    from pathlib import Path

    FILE = Path(__file__).parent / "pids"

    def note():
        with FILE.open("a") as file:
            file.write(f"{os.getpid()} ")

    @pytest.mark.ranks(1)
    def test_1():
        note()

    @pytest.mark.ranks(1)
    def test_2():
        note()

    @pytest.mark.ranks(1, fresh=True)
    def test_3():
        note()

    @pytest.mark.ranks(1)
    def test_4():
        note()
    """
    run(pytester, source, passed=4)
    first, second, fresh, fourth = (pytester.path / "pids").read_text().split()
    assert first == second
    assert len({first, fresh, fourth}) == 3


def test_monkeypatch_is_each_ranks_own_and_is_undone(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.mark.ranks(2)
    def test_patch(monkeypatch, rank):
        monkeypatch.setattr(os, "sep", f"sep {rank}")
        assert os.sep == f"sep {rank}"

    @pytest.mark.ranks(2)
    def test_patch_is_gone():
        assert os.sep == "/"

    def test_pytest_was_not_patched():
        assert os.sep == "/"
    """
    run(pytester, source, passed=3)


def test_a_skip_on_every_rank_skips_the_test(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.mark.ranks(2)
    def test_body():
        pytest.skip("no GPU here")
    """
    result = run(pytester, source, "-rs", skipped=1)
    result.stdout.fnmatch_lines(["*no GPU here*"])


def test_warning_filters_of_a_test_hold_on_its_ranks(pytester: pytest.Pytester) -> None:
    source = """
    import warnings

    @pytest.mark.ranks(1)
    @pytest.mark.filterwarnings("error")
    def test_error():
        with pytest.raises(UserWarning, match="gap"):
            warnings.warn("mind the gap")

    @pytest.mark.ranks(1)
    @pytest.mark.filterwarnings("ignore:mind the gap:UserWarning")
    @pytest.mark.filterwarnings("error")
    def test_ignored():
        warnings.warn("mind the gap")
    """
    run(pytester, source, passed=2)


def test_the_pool_is_a_fixture_whose_failures_show_their_output(pytester: pytest.Pytester) -> None:
    source = """
    def test_values(rank_pool):
        assert rank_pool.run(dist.get_rank, size=3) == [0, 1, 2]

    def program():
        print("before it raised")
        raise ValueError("as wanted")

    def test_failure(rank_pool):
        rank_pool.run(program, size=1)
    """
    result = run(pytester, source, passed=1, failed=1)
    result.stdout.fnmatch_lines(["E *ValueError: as wanted", "*rank 0 call*", "before it raised"])


def test_modules_of_ranks_preload_are_imported_before_the_first_job(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nranks_preload =\n    torch.distributed\n    this")
    source = """
    import sys

    def test_body(rank_pool):
        assert rank_pool.run(lambda: "this" in sys.modules, size=1) == [True]
        assert "this" not in sys.modules
    """
    run(pytester, source, passed=1)


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("ranks()", "*ranks() takes one or more world sizes, got ()"),
        ("ranks(0)", "*ranks() takes one or more world sizes, got (0,)"),
        ("ranks('2')", "*ranks() takes one or more world sizes, got ('2',)"),
        ("ranks(2, size=3)", "*ranks(): *unexpected keyword argument 'size'"),
    ],
)
def test_a_wrong_marker_is_refused_at_collection(
    pytester: pytest.Pytester, marker: str, complaint: str
) -> None:
    source = f"""
    @pytest.mark.{marker}
    def test_body():
        pass
    """
    result = run(pytester, source, errors=1)
    result.stdout.fnmatch_lines([complaint])


@pytest.mark.parametrize("fixture", ["capsys", "caplog", "request", "recwarn", "rank_pool"])
def test_a_fixture_that_acts_on_pytests_process_is_refused(
    pytester: pytest.Pytester, fixture: str
) -> None:
    source = f"""
    @pytest.mark.ranks(1)
    def test_body({fixture}):
        pass
    """
    result = run(pytester, source, failed=1)
    result.stdout.fnmatch_lines([f"ranks: fixture '{fixture}' acts on pytest's own process: *"])


@pytest.mark.parametrize("fixture", ["rank", "world_size"])
def test_rank_and_world_size_are_refused_without_the_marker(
    pytester: pytest.Pytester, fixture: str
) -> None:
    result = run(pytester, f"def test_body({fixture}): pass", errors=1)
    result.stdout.fnmatch_lines(["ranks: rank and world_size exist only under @pytest.mark.ranks"])


def test_an_async_body_fails_since_nothing_would_run_it(pytester: pytest.Pytester) -> None:
    source = """
    @pytest.mark.ranks(1)
    async def test_body():
        raise ValueError
    """
    result = run(pytester, source, failed=1)
    result.stdout.fnmatch_lines(["ranks: the body of the test is async: nothing would run it"])
