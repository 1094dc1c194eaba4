"""On stock Ray the explorer finds what is known to be wrong there.

`ci/explore --power --stock` looks for all of it, two minutes each. Here are those that
take it seconds.
"""

import sys

import pytest
from virtual_cluster.evidence.known_faults import TARGETS, search

from ray.tune import schedulers

QUICK = (
    "hyperband-saving",
    "hyperband-early-end",
    "pbt-synch-failure",
    "pbt-synch-step",
    "max-concurrent-basic",
    "max-concurrent-limiter",
    "two-saves",
    "pause-pending",
)


def test_every_known_fault_is_a_target():
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names) == 13
    assert set(QUICK) < set(names)


@pytest.mark.skipif(
    hasattr(schedulers, "ASHAv2"), reason="The patched build has none of these faults."
)
@pytest.mark.parametrize("name", QUICK)
def test_known_fault_is_found_and_shrunk(name):
    (target,) = (target for target in TARGETS if target.name == name)
    hit = search(target, seconds=60)
    assert hit.seconds is not None, f"not found in {hit.histories} histories"
    assert hit.events <= 12, hit.test
    assert hit.test.startswith("def test_")


if __name__ == "__main__":
    sys.exit(pytest.main(["-v", __file__]))
