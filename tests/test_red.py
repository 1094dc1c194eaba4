"""`ci/red` accepts failures that prove a fault of stock Ray's, and nothing else.

The interpreter of this run takes the place of stock Ray's: what it is told about Ray
are names that neither build has.
"""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from ci.lib.console import ROOT
from ci.lib.must_fail import wrong_reason

pytestmark = pytest.mark.timeout(240)

# Each test's name says whether it has to be accepted.
MADE_UP = """
import os, signal, time
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("a fixture's fault")

@pytest.mark.fixes("ray#1")
def test_red_assert():
    assert 1 == 2, "one is not two"

@pytest.mark.fixes("ray#2")
@pytest.mark.timeout(1)
def test_red_timeout():
    time.sleep(60)

@pytest.mark.fixes("ray#3")
def test_red_exception():
    raise KeyError("trial")

@pytest.mark.fixes("ray#4")
def test_red_did_not_raise():
    with pytest.raises(ValueError):
        pass

@pytest.mark.fixes("ray#5", "short-name")
@pytest.mark.parametrize("x", [1, 2])
def test_red_parametrized(x):
    assert x == 3

@pytest.mark.fixes("ray#6")
def test_red_attribute_error_of_a_known_name():
    None.trial_id

@pytest.mark.fixes("ray#7")
def test_green_passes():
    pass

@pytest.mark.fixes("ray#8")
@pytest.mark.parametrize("x", [1, 2])
def test_mixed_parametrized(x):
    assert x == 1

@pytest.mark.fixes("ray#9")
def test_green_import_error():
    from ray.tune import no_such_name_anywhere

@pytest.mark.fixes("ray#10")
def test_green_import_error_within():
    try:
        import no_such_module_anywhere
    except ImportError as error:
        raise RuntimeError("something else") from error

@pytest.mark.fixes("ray#11")
def test_green_unknown_attribute():
    import ray.tune
    ray.tune.no_such_name_anywhere

@pytest.mark.fixes("ray#12")
def test_green_unknown_keyword():
    (lambda: None)(no_such_name_anywhere=1)

@pytest.mark.fixes("ray#13")
def test_green_name_error():
    no_such_name_anywhere

@pytest.mark.fixes("ray#14")
def test_green_fixture_fails(broken):
    assert False

@pytest.mark.fixes("ray#15")
def test_green_fixture_is_missing(no_such_fixture):
    assert False

@pytest.mark.fixes("ray#16")
def test_green_skipped():
    pytest.skip("not today")

@pytest.mark.fixes("ray#17")
@pytest.mark.skip
def test_green_skipped_by_mark():
    assert False

@pytest.mark.fixes("ray#18")
@pytest.mark.xfail
def test_green_expected_to_fail():
    assert False

@pytest.mark.fixes()
def test_green_names_nothing():
    assert False

def test_without_a_mark():
    assert False
"""

UNCOLLECTED = """
import pytest
import no_such_module_anywhere

@pytest.mark.fixes("ray#30")
def test_never_seen():
    assert False
"""

DEAF = """
import signal, time
import pytest

@pytest.mark.fixes("ray#31")
@pytest.mark.timeout(1)
def test_deaf_to_its_timeout():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(300)
"""


def _run(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", MUST_FAIL_GRACE_S="2")
    env.pop("RAY_UNDER_TEST", None)
    return subprocess.run(
        [sys.executable, ROOT / "ci" / "red", "--python", sys.executable, folder],
        env=env,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """Run the made-up tests; give the exit code, what is said, and of each test."""
    folder = tmp_path_factory.mktemp("made-up")
    done = _run(folder, test_made_up=MADE_UP, test_uncollected=UNCOLLECTED)
    told = re.findall(
        r"::(\S+) (fails|NO PROOF): (.*?) *\[ *\d+%\]$", done.stdout, re.MULTILINE
    )
    return done, {test: (word, how) for test, word, how in told}


RIGHT = {
    "assert": "AssertionError: one is not two",
    "timeout": "timeout",
    "exception": "KeyError: 'trial'",
    "did_not_raise": "Failed: DID NOT RAISE",
    "parametrized[1]": "AssertionError",
    "parametrized[2]": "AssertionError",
    "attribute_error_of_a_known_name": "AttributeError",
}


@pytest.mark.parametrize("test", RIGHT)
def test_failures_of_the_right_kind_are_accepted(made_up, test):
    word, how = made_up[1][f"test_red_{test}"]
    assert word == "fails"
    assert how.startswith(RIGHT[test])


@pytest.mark.parametrize(
    "test, how",
    [
        ("passes", "passes on stock"),
        ("import_error", "wrong reason: ImportError"),
        ("import_error_within", "wrong reason: ModuleNotFoundError"),
        ("unknown_attribute", "stock Ray has no `no_such_name_anywhere`"),
        ("unknown_keyword", "stock Ray has no `no_such_name_anywhere`"),
        ("name_error", "wrong reason: NameError"),
        ("fixture_fails", "failed in a fixture: RuntimeError: a fixture"),
        ("fixture_is_missing", "failed in a fixture"),
        ("skipped", "was skipped"),
        ("skipped_by_mark", "was skipped"),
        ("expected_to_fail", "was skipped or expected to fail"),
        ("names_nothing", "names nothing"),
    ],
)
def test_what_proves_nothing_is_reported(made_up, test, how):
    word, told = made_up[1][f"test_green_{test}"]
    assert word == "NO PROOF"
    assert how in told


def test_every_parameter_set_counts(made_up):
    assert made_up[1]["test_mixed_parametrized[1]"][0] == "NO PROOF"
    assert made_up[1]["test_mixed_parametrized[2]"][0] == "fails"


def test_each_marked_test_is_judged_and_counted(made_up):
    done, told = made_up
    assert len(told) == 7 + 12 + 2
    assert "test_without_a_mark" not in done.stdout
    assert done.returncode == 1
    assert "13 failed, 1 deselected, 1 error, 8 failed as they must" in done.stdout


def test_a_file_that_cannot_be_collected_is_reported(made_up):
    said = made_up[0].stdout
    assert "ERROR collecting test_uncollected.py" in said
    assert "No module named 'no_such_module_anywhere'" in said


def test_a_test_that_is_deaf_to_its_timeout_ends_the_run(tmp_path):
    done = _run(tmp_path, test_deaf=DEAF)
    assert done.returncode == 1
    assert "test_deaf_to_its_timeout" in done.stdout
    assert "has ended the run" in done.stdout
    assert "in test_deaf_to_its_timeout" in done.stderr  # The stack.


def test_a_test_that_crashes_ends_the_run(tmp_path):
    text = "import os, pytest\n@pytest.mark.fixes('a')\ndef test_x(): os._exit(3)\n"
    done = _run(tmp_path, test_x=text)
    assert done.returncode == 3
    assert "test_x.py::test_x" in done.stdout
    assert "has ended the run" in done.stdout


def test_the_command_succeeds_when_all_fail(tmp_path):
    text = "import pytest\n@pytest.mark.fixes('ray#1')\ndef test_x():\n    assert 0\n"
    done = _run(tmp_path, test_x=text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 failed as they must" in done.stdout


@pytest.mark.parametrize("text", ["def test_x(): pass\n", "# pytest.mark.fixes\n"])
def test_the_command_fails_where_no_test_is_marked(tmp_path, text):
    assert _run(tmp_path, test_x=text).returncode != 0


def test_the_command_names_a_path_that_is_not_there(tmp_path):
    done = _run(tmp_path / "test_gone.py")
    assert done.returncode != 0
    assert "test_gone.py" in done.stderr


def test_a_failed_import_on_a_worker_does_not_count():
    error = RuntimeError("ray::f()\n  import nix\nModuleNotFoundError: No module 'nix'")
    assert "failed import" in wrong_reason(error, lambda name: True)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
