"""A pytest plugin that runs the tests marked fixes(...) alone, and wants them to fail.

A regression test proves something only if it fails without the fix, and for the right
reason: in its call phase, by an assertion, an exception of Ray's or a hang. One that
passes, is skipped, fails in a fixture, or misses a name that only the patched build
has, proves nothing. (That is why `xfail(strict=True)` will not do: it takes any
failure.) pytest counts the tests that fail as they must as passed.
"""

import faulthandler
import importlib.util
import os
import re
from pathlib import Path

import pytest

# Granted to a test beyond its own timeout before the run ends: code that never returns
# to the interpreter is deaf to the signal of pytest-timeout.
GRACE_S = float(os.environ.get("MUST_FAIL_GRACE_S", 15))
# For a test without any timeout, for fixtures, and for collecting.
DEFAULT_LIMIT_S = 120
AS_IT_MUST = "failed as they must"
STDERR = os.fdopen(os.dup(2), "w")  # Before pytest captures what goes there.


def pytest_configure(config):
    config.addinivalue_line("markers", "fixes(*names): see tests/conftest.py")
    _end_after(DEFAULT_LIMIT_S)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    unmarked = [item for item in items if not item.get_closest_marker("fixes")]
    items[:] = [item for item in items if item.get_closest_marker("fixes")]
    if unmarked:
        config.hook.pytest_deselected(items=unmarked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        limit = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    else:
        limit = item.config.getoption("timeout", None) or item.config.getini("timeout")
    _end_after(float(limit or DEFAULT_LIMIT_S) + GRACE_S)
    return (yield)


# Outermost, so that what other plugins make of a failure is known.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "teardown":
        report.outcome = "passed"  # Its call says what it proves.
    elif report.when == "call" or report.outcome != "passed":
        _end_after(DEFAULT_LIMIT_S)  # For what comes after the call.
        error = call.excinfo and call.excinfo.value
        names = [name for mark in item.iter_markers("fixes") for name in mark.args]
        why_not = judge(report, error, names)
        vars(report).pop("wasxfail", None)
        report.outcome = "failed" if why_not else "passed"
        report.longrepr = why_not
        report.how = why_not or _shortly(error)
    return report


def pytest_report_teststatus(report):
    if not hasattr(report, "how"):
        return None
    if report.failed:
        return "failed", "F", f"NO PROOF: {report.how}"
    return AS_IT_MUST, ".", f"fails: {report.how[:90]}"


def judge(report, error, names):
    """Tell why the end of a test does not prove a fault of stock Ray's.

    Args:
        report: pytest's report of its call, or of a setup that did not pass.
        error: The exception that ended it, or None.
        names: What the test says that it fixes.

    Returns:
        The reason, or None where it failed as it must.
    """
    if not names:
        return "its mark names nothing: fixes() needs an issue"
    if report.outcome == "skipped":
        return f"was skipped or expected to fail: {_shortly(error)}"
    if report.when == "setup":
        return f"failed in a fixture: {_shortly(error)}"
    if report.outcome == "passed" or error is None:
        return "passes on stock"
    reason = wrong_reason(error, known)
    return reason and f"fails for the wrong reason: {reason}"


def wrong_reason(error, known):
    """Tell why an exception does not prove a fault of stock Ray's.

    Args:
        error: The exception; its causes count as well.
        known: Whether stock Ray knows a name: a function of the name.

    Returns:
        The reason, or None where the exception counts.
    """
    while error is not None:
        kind, message = type(error).__name__, str(error)
        if isinstance(error, (ImportError, NameError)):
            return _shortly(error)
        if isinstance(error, (AttributeError, TypeError)):
            told = re.search(
                r"unexpected keyword argument '(\w+)'|has no attribute '(\w+)'", message
            )
            name = told and (told[1] or told[2]) or getattr(error, "name", None)
            if name and not known(name):
                return f"{kind}: stock Ray has no `{name}`"
        if re.search(r"\b(ModuleNotFoundError|ImportError): ", message):
            return f"{kind} out of a failed import: {message[:160]}"
        error = error.__cause__ or error.__context__
    return None


def known(name):
    """Tell whether the Tune of the Ray installed knows a name."""
    if not _words:
        ray = importlib.util.find_spec("ray")
        for part in ("tune", "air", "train", "util") if ray else ():
            for file in Path(ray.origin).parent.joinpath(part).rglob("*.py"):
                _words.update(re.findall(r"\w+", file.read_text(errors="replace")))
    return name in _words


_words = set()


def _end_after(seconds):
    """End the process after a while, whatever it does then."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)


def _shortly(error):
    if error is None:
        return ""
    if type(error).__name__ == "Failed" and str(error).startswith("Timeout "):
        return "timeout"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
