"""Runs the tests that go up to Ray here, on stand-ins for Ray's own helpers of tests.

Each of them has to fail on stock Ray: `ci/red` sees them as marked. The marks are not
in the files, which go up as they are.
"""

from pathlib import Path

import pytest

import ray.train
import ray.tune

STAND_INS = Path(__file__).resolve().parents[1] / "upstream_stand_ins" / "ray"
# Tests that pass on stock Ray too, and guard what must stay as it is.
GUARDS = ()

for package in (ray.train, ray.tune):
    package.__path__.append(str(STAND_INS / package.__name__.rpartition(".")[2]))


def pytest_collection_modifyitems(items):
    for item in items:
        if "upstream" in item.path.parts and item.name.partition("[")[0] not in GUARDS:
            item.add_marker(pytest.mark.fixes(item.path.stem))
