"""`ci/upstream-tests` tells what is worse on the patched build, and nothing else.

Its builds are here one interpreter under two names, and its tree a few made-up files.
"""

import json
import os
import stat
import subprocess
import sys
import textwrap

import pytest

from ci.commands import upstream_tests
from ci.lib.console import ROOT, Failed
from ci.lib.upstream_suite import (
    WHOLE_FILE,
    Compared,
    Outcome,
    Report,
    Suite,
    judge,
    read_report,
    selection,
    shard,
    worse,
)

pytestmark = pytest.mark.timeout(240)

RUN = """\
#!/bin/sh
python=$1; file=$2; shift 2
cd "$(dirname "$0")"
exec "$python" -m pytest -q -p no:cacheprovider "made/$file" "$@"
"""

PYTHON = """\
#!/bin/sh
BUILD={build}; export BUILD
exec {python} "$@"
"""

FILES = {
    "test_same.py": """
        import os
        import pytest

        @pytest.mark.parametrize("x", ["one", "two words"])
        def test_passes(x):
            assert os.path.isdir(os.environ["RAY_TMPDIR"])

        def test_skipped():
            pytest.skip("not today")

        class TestClass:
            def test_fails_on_both(self):
                assert False, "as on stock"
    """,
    "test_other.py": """
        import os
        import pytest

        patched = os.environ["BUILD"] == "patched"

        def runs(name):
            with open(f"{name}.txt", "a+") as file:
                file.write(".")
            return os.path.getsize(f"{name}.txt")

        class TestClass:
            @pytest.mark.parametrize("x", [1, 2])
            def test_worse(self, x):
                assert not (patched and x == 2), "two is too many"

        def test_skipped_on_patched():
            if patched:
                pytest.skip("here alone")

        def test_worse_once():
            assert not (patched and runs("once") == 1)

        @pytest.fixture
        def broken_end():
            yield
            assert not patched, "cannot be ended"

        def test_error_after_its_end(broken_end):
            pass

        if not patched:
            def test_missing_on_patched():
                pass

        def test_better():
            assert patched
    """,
    "test_ends_the_run.py": """
        import os

        def test_ends():
            if os.environ["BUILD"] == "patched":
                os._exit(3)
    """,
    "test_import.py": """
        import os

        if os.environ["BUILD"] == "patched":
            import no_such_module_anywhere

        def test_x():
            pass
    """,
    "test_slow.py": """
        import os, time

        def test_first():
            pass

        def test_slow():
            if os.environ["BUILD"] == "patched":
                time.sleep(300)
    """,
}


def executable(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Lay a made-up tree out, and the interpreters of the two builds."""
    root = tmp_path_factory.mktemp("tree")
    (root / "made").mkdir()
    executable(root / "run", RUN)
    for build in ("stock", "patched"):
        executable(root / build, PYTHON.format(build=build, python=sys.executable))
    for name, text in FILES.items():
        (root / "made" / name).write_text(textwrap.dedent(text))
    (root / "tests.txt").write_text("# In this order\ntest_same.py\n\ntest_other.py\n")
    return root


def command(tree, *args):
    env = {k: v for k, v in os.environ.items() if k != "RAY_UNDER_TEST"}
    builds = [f"--{build}={tree / build}" for build in ("stock", "patched")]
    return subprocess.run(
        [
            *[sys.executable, ROOT / "ci" / "upstream-tests", f"--tree={tree}"],
            *[*builds, f"--logs={tree / 'logs'}", *args],
        ],
        env=env,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def whole_list(tree):
    """Run the list; return what was said, and what was written."""
    done = command(tree, "--reruns=1", f"--json={tree / 'out.json'}")
    return done, json.loads((tree / "out.json").read_text())["files"]


def test_what_is_worse_is_a_difference(whole_list):
    done, files = whole_list
    assert done.returncode == 1, done.stdout + done.stderr
    assert files["test_same.py"]["differences"] == {}
    found = files["test_other.py"]["differences"]
    assert set(found) == {
        "TestClass::test_worse[2]",
        "test_skipped_on_patched",
        "test_error_after_its_end",
        "test_missing_on_patched",
    }
    assert found["TestClass::test_worse[2]"] == (
        "failed: stock 0 of 2, patched 2 of 2 (AssertionError: two is too many)"
    )
    assert found["test_skipped_on_patched"].startswith("skipped: stock 0 of 2")
    assert found["test_missing_on_patched"] == "missing: stock 0 of 2, patched 2 of 2"


def test_what_passes_again_is_no_difference_but_is_told(whole_list):
    done, files = whole_list
    assert files["test_other.py"]["unconfirmed"] == {
        "test_worse_once": "failed: stock 0 of 2, patched 1 of 2 (AssertionError: "
        "assert not (True and 1 == 1))"
    }
    assert "passed each time it was run again" in done.stdout


class Made(Suite):
    """Gives outcomes by build and test instead of running a file."""

    def __init__(self, outcomes):
        self.outcomes = outcomes
        self.asked = []

    def run(self, build, file, test=None):
        self.asked.append((build, test))
        found = self.outcomes[build]
        names = [test] if test else found
        return Report({name: Outcome(found[name]) for name in names})


def test_what_is_worse_is_run_three_times_on_each_build_in_turn():
    suite = Made(
        {
            "stock": {"a": "passed", "b": "passed", "c": "failed"},
            "patched": {"a": "passed", "b": "failed", "c": "failed"},
        }
    )
    found = suite.compare("test_x.py")
    # What fails on stock, too, is clear after one.
    turn = [("stock", "b"), ("patched", "b")]
    assert suite.asked[2:] == [*turn * 3, ("stock", "c"), ("patched", "c")]
    assert found.differences == {"b": "failed: stock 0 of 4, patched 4 of 4"}


def test_table_has_a_row_for_each_file_and_a_sum(whole_list):
    rows = {
        words[0]: words[1:]
        for words in map(str.split, whole_list[0].stdout.splitlines())
        if len(words) == 8
    }
    assert rows["test_same.py"] == "2 1 1 2 1 1 0".split()
    assert rows["test_other.py"] == "6 1 0 2 3 1 4".split()
    assert "in all 8 2 1 4 4 2 4" in " ".join(whole_list[0].stdout.split())


def test_what_was_written_gives_the_table_again(whole_list, tree):
    done = command(tree, "--read", str(tree / "out.json"))
    assert done.returncode == 1

    def shown(text):
        return text[text.index("stock    ") :].splitlines()[:-1]

    assert shown(done.stdout) == shown(whole_list[0].stdout)


def test_without_a_difference_it_succeeds(tree):
    done = command(tree, "test_same.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differences in 1 files" in done.stdout


def test_a_shard_is_a_part_of_the_list(tree):
    done = command(tree, "--shard=1/2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_same.py" in done.stdout
    assert "test_other.py" not in done.stdout


@pytest.mark.parametrize(
    "file, reason",
    [
        ("test_ends_the_run.py", "exit code 3, see "),
        ("test_import.py", "collection failure"),
    ],
)
def test_a_file_that_cannot_report_is_a_difference(tree, file, reason):
    done = command(tree, "--reruns=1", f"--json={tree / 'file.json'}", file)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tree / "file.json").read_text())["files"][file]
    assert list(found["differences"]) == [WHOLE_FILE]
    said = found["differences"][WHOLE_FILE]
    assert said.startswith(f"failed: stock 0 of 2, patched 2 of 2 ({reason}")


def test_a_file_that_takes_too_long_is_ended(tree):
    done = command(tree, "--reruns=0", "--limit=5", "test_slow.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(ended after 5 s, see " in done.stdout


def test_a_test_may_take_as_long_as_is_said(tree):
    done = command(tree, "--reruns=0", "--timeout=1", "test_slow.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_slow.py::test_slow" in done.stdout
    assert "Timeout" in done.stdout


# What is wrong with the arguments


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "--tree DIR"),
        (["--tree=/nowhere"], "no program /nowhere/run"),
        (["--tree={tree}", "--list=/nowhere/list"], "/nowhere/list"),
        (["--tree={tree}", "--shard=3/2"], "no part 3 of 2"),
        (["--tree={tree}", "--shard=x"], "not of the form 1/3"),
        (["--tree={tree}", "--shard=3/3"], "no file to run"),
        (["--tree={tree}", "--stock=/nowhere/python"], "/nowhere/python"),
        (["--tree={tree}"], "no {tree}/requirements.txt"),
        (["--read", "{tree}/tests.txt"], "not what --json writes"),
    ],
)
def test_bad_arguments_are_named(tree, args, said):
    with pytest.raises(Failed, match=said.format(tree=tree)):
        upstream_tests.main([arg.format(tree=tree) for arg in args])


# How a test is judged


def compared(test, stock, patched):
    """Make a comparison out of words such as "pass fail": the first run, the others."""
    kinds = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    ends = {
        build: [Outcome(kinds[word]) for word in words.split()]
        for build, words in (("stock", stock), ("patched", patched))
    }
    first = {build: Report({test: found.pop(0)}) for build, found in ends.items()}
    return Compared(first, {test: ends})


@pytest.mark.parametrize(
    "stock, patched, verdict",
    [
        ("pass pass pass pass", "fail fail fail fail", "difference"),
        ("pass pass pass pass", "fail pass pass fail", "difference"),
        ("pass pass pass pass", "fail pass pass pass", "unconfirmed"),
        ("pass pass pass fail", "fail fail fail fail", "difference"),
        ("pass pass fail fail", "fail pass fail fail", "neither"),
        ("pass pass pass fail", "fail pass fail pass", "neither"),
        ("fail fail", "fail fail", "neither"),
        ("fail pass pass pass", "fail fail fail fail", "difference"),
        ("skip skip skip skip", "fail fail fail fail", "neither"),
        ("pass pass pass pass", "skip skip skip skip", "difference"),
        ("pass", "fail", "difference"),
    ],
)
def test_verdict(stock, patched, verdict):
    found = compared("test_x", stock, patched)
    judge(found)
    assert found.differences == Compared.from_json(found.to_json()).differences
    assert list(found.differences) == ["test_x"] * (verdict == "difference")
    assert list(found.unconfirmed) == ["test_x"] * (verdict == "unconfirmed")


def test_tests_that_only_patched_has_and_passes_are_no_matter():
    first = {
        "stock": Report({"a": Outcome("passed"), "b": Outcome("skipped")}),
        "patched": Report({"a": Outcome("passed"), "c": Outcome("passed")}),
    }
    assert worse(first) == []


def test_names_are_those_of_classes_and_functions():
    report = """<testsuites><testsuite>
    <testcase classname="a.test_x.TestA.TestB" name="test_1[x::y]" />
    <testcase classname="made.test_x" name="test_2"><skipped message="no&#10;t" />
    </testcase>
    <testcase classname="made.test_x" name="test_3" />
    <testcase classname="made.test_x" name="test_3"><error>late</error></testcase>
    <testcase classname="" name="made.test_x"><error message="broken" /></testcase>
    </testsuite></testsuites>"""
    assert read_report(report, "made/test_x.py") == {
        "TestA::TestB::test_1[x::y]": Outcome("passed"),
        "test_2": Outcome("skipped", "no"),
        "test_3": Outcome("failed", "late"),
        WHOLE_FILE: Outcome("failed", "broken"),
    }


@pytest.mark.parametrize(
    "test, expression",
    [
        ("test_x", "test_x"),
        ("TestA::test_x", "TestA and test_x"),
        ("test_x[a-1.5]", "test_x[a-1.5]"),
        ("TestA::test_x[two words]", "TestA and test_x"),
    ],
)
def test_a_test_is_selected_by_its_name(test, expression):
    assert selection(test) == expression


def test_shards_hold_each_file_once():
    files = list("abcdefg")
    parts = [shard(files, f"{i}/3") for i in (1, 2, 3)]
    assert parts[0] == ["a", "d", "g"]
    assert sorted(sum(parts, [])) == files


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
