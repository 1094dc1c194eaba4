"""A pytest plugin for `ci/red`: keeps the tests marked fixes(...), tells how they end.

What happens is written as lines of JSON to the file that RED_REPORT names, at once, so
that whoever reads it knows where a run stood when it hung or crashed.
"""

import json
import os
import traceback

import pytest


def _tell(**event):
    with open(os.environ["RED_REPORT"], "a") as out:
        out.write(json.dumps(event) + "\n")


def pytest_configure(config):
    config.addinivalue_line("markers", "fixes(*names): see tests/conftest.py")


def pytest_collectreport(report):
    if report.failed:
        _tell(
            event="uncollected",
            file=report.nodeid,
            why=str(report.longrepr).strip().splitlines()[-1:],
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    done = set(json.loads(os.environ.get("RED_DONE", "[]")))
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
    """Returns the seconds that pytest-timeout grants a test, or None."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        limit = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    else:
        limit = item.config.getoption("timeout", None)
        limit = limit or item.config.getini("timeout")
    return float(limit) if limit else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    _tell(event="started", test=item.nodeid, limit=_limit(item))
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
    event = {
        "event": "finished",
        "test": item.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
    }
    if call.excinfo is not None:
        error = call.excinfo.value
        frames = traceback.extract_tb(error.__traceback__)
        text = str(error)
        event.update(
            type=type(error).__name__,
            message=(text.strip().splitlines() or [""])[0][:200],
            # Fixtures, tests and their helpers, as opposed to Ray and libraries.
            raised_in=frames[-1].filename if frames else "",
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
