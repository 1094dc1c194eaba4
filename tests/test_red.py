"""`ci/red` accepts failures that prove a fault of stock Ray's, and nothing else.

The interpreter of this run takes the place of stock Ray's: what it is told about Ray
are names that neither build has.
"""

import os
import subprocess
import sys
import textwrap

import pytest

from ci.lib import must_fail
from ci.lib.console import ROOT
from ci.lib.must_fail import MustFail, marked_files, wrong_reason

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

@pytest.mark.fixes("ray#19")
def test_green_crashes():
    os._exit(3)

@pytest.mark.fixes("ray#20")
def test_red_after_a_crash():
    assert False

@pytest.mark.fixes("ray#21")
@pytest.mark.timeout(1)
def test_red_deaf_to_its_timeout():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(300)

@pytest.mark.fixes("ray#22")
def test_red_after_a_hang():
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


def _write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


def _environment():
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    env.pop("RAY_UNDER_TEST", None)
    return env


def _run(folder):
    run = MustFail(sys.executable, marked_files([folder]), folder, _environment())
    run.run()
    return run


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made-up")
    _write(folder, test_made_up=MADE_UP, test_uncollected=UNCOLLECTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(must_fail, "GRACE_S", 2)
        return _run(folder)


def _verdicts(run, part):
    return {v.test.partition("::")[2]: v for v in run.verdicts if part in v.test}


def test_failures_of_the_right_kind_are_accepted(made_up):
    verdicts = _verdicts(made_up, "test_red_")
    assert len(verdicts) == 10
    assert {name: v.how for name, v in verdicts.items() if not v.counts} == {}
    assert verdicts["test_red_timeout"].how == "timeout"
    assert verdicts["test_red_assert"].how.startswith("assert: one is not two")
    assert verdicts["test_red_exception"].how == "KeyError: 'trial'"
    assert verdicts["test_red_deaf_to_its_timeout"].how.startswith("hang")
    assert verdicts["test_red_parametrized[1]"].names == ["ray#5", "short-name"]


@pytest.mark.parametrize(
    "test, how",
    [
        ("passes", "passes on stock"),
        ("import_error", "wrong reason: ImportError"),
        ("import_error_within", "wrong reason: ModuleNotFoundError"),
        ("unknown_attribute", "stock Ray has no `no_such_name_anywhere`"),
        ("unknown_keyword", "stock Ray has no `no_such_name_anywhere`"),
        ("name_error", "wrong reason: NameError"),
        ("fixture_fails", "failed in a fixture: RuntimeError: a fixture's fault"),
        ("fixture_is_missing", "failed in a fixture"),
        ("skipped", "was skipped"),
        ("skipped_by_mark", "was skipped"),
        ("expected_to_fail", "was skipped or expected to fail"),
        ("names_nothing", "names nothing"),
        ("crashes", "crashes the interpreter (exit code 3)"),
    ],
)
def test_what_proves_nothing_is_reported(made_up, test, how):
    verdict = _verdicts(made_up, "test_green_")[f"test_green_{test}"]
    assert not verdict.counts
    assert how in verdict.how


def test_every_parameter_set_counts(made_up):
    verdicts = _verdicts(made_up, "test_mixed_")
    assert {name: v.counts for name, v in verdicts.items()} == {
        "test_mixed_parametrized[1]": False,
        "test_mixed_parametrized[2]": True,
    }


def test_each_marked_test_is_judged_once(made_up):
    tests = [verdict.test for verdict in made_up.verdicts]
    assert len(tests) == len(set(tests)) == 10 + 13 + 2
    assert not _verdicts(made_up, "test_without_a_mark")


def test_a_file_that_cannot_be_collected_is_reported(made_up):
    ((file, why),) = made_up.uncollected
    assert file.endswith("test_uncollected.py")
    assert "no_such_module_anywhere" in " ".join(why)


def _command(*args):
    return subprocess.run(
        [sys.executable, str(ROOT / "ci" / "red"), "--python", sys.executable, *args],
        env=_environment(),
        capture_output=True,
        text=True,
    )


def test_the_command_succeeds_when_all_is_red(tmp_path):
    text = "import pytest\n@pytest.mark.fixes('ray#1')\ndef test_x():\n    assert 0\n"
    _write(tmp_path, test_x=text)
    done = _command(str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 tests" in done.stdout


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "import pytest\n@pytest.mark.fixes('ray#1')\ndef test_x(): pass\n",
            "NO PROOF",
        ),
        ("import nix\n# pytest.mark.fixes\n", "NOT COLLECTED"),
        ("def test_x(): pass\n", "no test is marked fixes(...)"),
    ],
)
def test_the_command_fails_otherwise(tmp_path, text, said):
    _write(tmp_path, test_x=text)
    done = _command(str(tmp_path))
    assert done.returncode == 1
    assert said in done.stdout


def test_the_command_names_a_path_that_is_not_there(tmp_path):
    done = _command(str(tmp_path / "test_gone.py"))
    assert done.returncode != 0
    assert "test_gone.py" in done.stderr


def test_a_failed_import_on_a_worker_does_not_count():
    chain = [
        {
            "type": ["RayTaskError", "RayError", "Exception"],
            "message": "ray::f()\n  import nix\nModuleNotFoundError: No module 'nix'",
            "name": None,
        }
    ]
    assert "failed import" in wrong_reason(chain, lambda name: True)


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
