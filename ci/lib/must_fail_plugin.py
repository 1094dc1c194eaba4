"""A pytest plugin that keeps the tests marked fixes(...) and tells how they end.

What happens is written as lines of JSON to the file that MUST_FAIL_EVENTS names, at
once, so that whoever reads it knows where a run stood when it hung or crashed.
"""

import faulthandler
import importlib.util
import json
import os
import sys

import pytest

_DEFAULT_LIMIT_S, _GRACE_S = json.loads(os.environ["MUST_FAIL_LIMITS"])


def _tell(**event):
    with open(os.environ["MUST_FAIL_EVENTS"], "ab", buffering=0) as out:
        out.write(json.dumps(event).encode() + b"\n")


def _end_after(seconds):
    """End the process after a while, whatever it does then."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


def pytest_configure(config):
    config.addinivalue_line("markers", "fixes(*names): see tests/conftest.py")
    ray = importlib.util.find_spec("ray")
    _tell(event="ray", folder=os.path.dirname(ray.origin) if ray else None)
    _end_after(_DEFAULT_LIMIT_S)


def pytest_collectreport(report):
    if report.failed:
        why = str(report.longrepr).strip().splitlines()[-1:]
        _tell(event="uncollected", file=report.nodeid, why=why)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    done = set(json.loads(os.environ["MUST_FAIL_DONE"]))
    kept, dropped = [], []
    for item in items:
        marks = list(item.iter_markers("fixes"))
        (kept if marks and item.nodeid not in done else dropped).append(item)
        if marks and not done:
            names = [str(name) for mark in marks for name in mark.args]
            _tell(event="collected", test=item.nodeid, names=names)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = kept


def _limit(item):
    """Return the seconds that pytest-timeout grants a test, or None."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        limit = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    else:
        limit = item.config.getoption("timeout", None)
        limit = limit or item.config.getini("timeout")
    return float(limit) if limit else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    limit = _limit(item)
    _tell(event="started", test=item.nodeid, limit=limit)
    _end_after((limit or _DEFAULT_LIMIT_S) + _GRACE_S)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    _tell(event="called", test=item.nodeid)
    return (yield)


def _chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when != "setup":
        _end_after(_DEFAULT_LIMIT_S)  # For what comes after the call.
    event = {
        "event": "finished",
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
    }
    if call.excinfo is not None:
        error = call.excinfo.value
        text = str(error)
        event.update(
            type=type(error).__name__,
            message=(text.strip().splitlines() or [""])[0][:200],
            timeout=text.startswith("Timeout ") and type(error).__name__ == "Failed",
            chain=[
                {
                    "type": [c.__name__ for c in type(e).__mro__],
                    "message": str(e)[:2000],
                    "name": getattr(e, "name", None),
                }
                for e in _chain(error)
            ],
        )
    _tell(**event)
    return report
